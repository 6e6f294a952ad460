"""Each program of conformance/upstream/faults.toml shows its fault on the stock release, but not with the series.

If docs/upstream.md names a patch for the fault, the program must print something else with the series, else the same.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from conformance import FIXTURE, ROOT
from conformance.oracle.profiles import FULL
from conformance.series.patches import RELEASES, checkout, commits, unpack
from conformance.series.trees import in_tree

pytestmark = [pytest.mark.patched_source, pytest.mark.series]
DATA = tomllib.loads((ROOT / "conformance" / "upstream" / "faults.toml").read_text("utf-8"))
FAULTS: dict[str, dict[str, str]] = DATA["fault"]
PAGE = (ROOT / "docs" / "upstream.md").read_text("utf-8").replace("`", "")
# The links to the patches, or "open", by title.
ROWS: dict[str, str] = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (open|\[[^|]+\.patch\)) \|$", PAGE, re.MULTILINE))
TIMEOUT = 120.0


def run(tree: Path, folder: Path, code: str) -> str:
    """What code prints on the mlx-lm of a tree."""
    for name, text in DATA["files"].items():
        (folder / name).write_text(text)
    if not (fixture := folder / "conformance" / "fixture").exists():
        fixture.parent.mkdir()
        fixture.symlink_to(FIXTURE)
    done = in_tree(tree, folder, "-c", f"{code}\nimport os; os._exit(0)", timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"--- printed with the {tree.name}:", done.stdout, sep="\n")
    return done.stdout.removesuffix("\n")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    names = {"release": 0, "series": -1}
    return [unpack(commits()[number], tmp_path_factory.mktemp("tree") / name) for name, number in names.items()]


@pytest.mark.parametrize("title", [title for title, fault in FAULTS.items() if "code" in fault])
def test_shows_its_fault(title: str, trees: list[Path], tmp_path: Path) -> None:
    why, code, printed = (FAULTS[title][key].removesuffix("\n") for key in ("why", "code", "printed"))
    print(f"--- {title}:", why, "--- the program:", code, sep="\n")
    # The data is about the releases that are pinned.
    pinned, mended = checkout().name.removeprefix("mlx-lm-") in RELEASES, ROWS[title] != "open"
    # What is mended is asked of the release, which does not change, in the full profile only.
    if pinned and (FULL or not mended):
        assert run(trees[0], tmp_path, code) == printed
    if mended or (pinned and FULL):
        assert (run(trees[1], tmp_path, code) != printed) == mended


def test_the_page_has_a_row_for_each_fault() -> None:
    assert list(ROWS) == list(FAULTS)
