"""What README.md and docs/ link to and name is there, and their programs draft."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main as ask
from conformance.pages import DRAFTING, README, USE, blocks, text_of
from conformance.series.patches import PATCHES

Capture = pytest.CaptureFixture[str]

pytestmark = [pytest.mark.selftest, pytest.mark.usefixtures("known_costs")]
DOCUMENTS = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True).stdout.split()


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_links_to_and_names_is_there(name: str) -> None:
    text = text_of(name)
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", without_code(text)):
        to, _, anchor = link.partition("#")
        target = (Path(name).parent / to).resolve() if to else Path(name)
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target.read_text()), f"{link}: there is no such heading"
    # Paths and modules, also in examples.
    for path in re.findall(r"(?<![\w/.-])((?:conformance|scripts|docs)/[\w/.-]*\w)", text):
        assert Path(path).exists(), f"{path} is not there"
    for module in re.findall(r"python -m (conformance[\w.]*)", text):
        file = Path(module.replace(".", "/"))
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), f"{module} cannot be run"


def test_the_number_of_patches() -> None:
    text = text_of(README) + text_of(USE) + text_of("CHANGELOG.md").partition("\n- ")[0]
    shown = re.findall(r"lookup\.(\d+)|\(\d+/(\d+)\)|(?:^|with the |## )(\d+)(?: patches|$)", text, re.MULTILINE)
    assert {int("".join(number)) for number in shown} == {len(PATCHES)}


@pytest.mark.parametrize("page", [USE, DRAFTING])
def test_each_program_drafts(page: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that nobody reads prints nothing."""
    names: dict[str, Any] = {}
    for name in ("README.md", "conformance"):
        (tmp_path / name).symlink_to(ROOT / name)
    # One of them writes a file.
    monkeypatch.chdir(tmp_path)
    for program in blocks(page, "stream_generate("):
        exec(program, names)
        assert capsys.readouterr().out, program
        assert names["response"].draft.drafted > 0, program


def test_a_model_that_is_none_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    file, untold = tmp_path / "a file", tmp_path / "untold"
    file.touch()
    untold.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURE / name, untold)
    for model in (str(file), "nowhere/nothing", str(untold)):
        assert ask(["check", "--model", model]) == 3
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert model in line
        assert said.out == ""
