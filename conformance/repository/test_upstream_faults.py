"""Each reproduction in docs/upstream.md shows its fault on the stock release, but not with the patch that repairs it.

A reproduction is a block of Python and a block with its output. If the output differs, the release has no such fault or
the reproduction is wrong, and the test fails. If a section names a patch, its block must print something else with the
series.
"""

from __future__ import annotations

import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from conformance import FIXTURE, ROOT
from conformance.series.patches import RELEASES, checkout, commits, unpack
from conformance.series.trees import in_tree

pytestmark = pytest.mark.patched_source
DOCUMENT = ROOT / "docs" / "upstream.md"
TIMEOUT = 120.0


class Reproduction(NamedTuple):
    title: str
    repaired: bool
    code: str
    printed: str


def parse(document: str) -> tuple[dict[str, str], list[Reproduction]]:
    """The files that the reproductions import, by name, and the reproductions."""
    files, found = {}, []
    for section in re.split(r"^##+ ", document, flags=re.MULTILINE)[1:]:
        title = section.split("\n", 1)[0]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        if blocks and blocks[0][1].startswith("# serve.py\n"):
            files["serve.py"] = blocks.pop(0)[1]
        kinds = [kind for kind, _ in blocks]
        assert kinds in ([], ["python", "text"]), f"'{title}' has the blocks {kinds}"
        if blocks:
            repaired = re.search(r"\(\.\./patches/\S+\.patch\)\)$", section.split("\n```", 1)[0].rstrip()) is not None
            found.append(Reproduction(title, repaired, *(text for _, text in blocks)))
    return files, found


FILES, REPRODUCTIONS = parse(DOCUMENT.read_text())


def run(tree: Path, folder: Path, code: str) -> str:
    """What code prints on the mlx-lm of a tree."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    shutil.copytree(FIXTURE, folder / "conformance" / "fixture", dirs_exist_ok=True)
    done = in_tree(tree, folder, _reproduce, code, timeout=TIMEOUT)
    assert done.returncode == 0, done.said[-3000:]
    return (folder / "printed.txt").read_text()


def _reproduce(code: str) -> int:
    with open("printed.txt", "w") as file, redirect_stdout(file):
        exec(compile(code, "reproduction", "exec"), {"__name__": "__main__"})
    return 0


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The release and the whole series."""
    return [unpack(commits()[number], tmp_path_factory.mktemp("tree")) for number in (0, -1)]


@pytest.mark.parametrize("reproduction", REPRODUCTIONS, ids=lambda r: r.title)
def test_shows_its_fault(reproduction: Reproduction, trees: list[Path], tmp_path: Path) -> None:
    # The document is about the releases that are pinned.
    if checkout().name.removeprefix("mlx-lm-") in RELEASES:
        assert run(trees[0], tmp_path, reproduction.code) == reproduction.printed
    if reproduction.repaired:
        assert run(trees[1], tmp_path, reproduction.code) != reproduction.printed
