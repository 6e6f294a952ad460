"""What README.md and docs/ link to and name is there, their examples do what they show, and errors are one sentence."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main as ask
from conformance.check import check
from conformance.check.prompts import built_in
from conformance.doors.printed import drafting
from conformance.pages import DRAFTING, README, USE, block, blocks, text_of
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


def test_the_readme_is_short_and_the_pages_are_seven() -> None:
    pages = {path.stem: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    assert len(pages["README"].splitlines()) < 100
    assert sum(len(text.split()) for text in pages.values()) <= 18_000
    assert pages.keys() == {"README", "use", "drafting", "contracts", "benchmarks", "releases", "upstream", "faq"}


def test_the_number_of_patches() -> None:
    text = text_of(README) + text_of(USE) + text_of("CHANGELOG.md").partition("\n- ")[0]
    shown = re.findall(r"lookup\.(\d+)|\(\d+/(\d+)\)|(?:^|with the |## )(\d+)(?: patches|$)", text, re.MULTILINE)
    assert {int("".join(number)) for number in shown} == {len(PATCHES)}


def printed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> str:
    """What a command of the package prints, run in this process."""
    name, *arguments = shlex.split(command.replace("\\\n", " "))
    assert name == ".venv/bin/mlx_lm.generate"
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    importlib.import_module("mlx_lm.generate").main()
    return capsys.readouterr().out


def test_the_first_command(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    command = block(USE, "mlx_lm.generate --model conformance/fixture --max-tokens 200")
    drafted = printed(command, monkeypatch, capsys)
    plain = printed(command.replace("--draft-type auto", ""), monkeypatch, capsys)
    assert plain.split("==========")[1] == drafted.split("==========")[1]
    shown, said = drafting(block(USE, "26 tokens drafted")), drafting(drafted)
    assert shown
    assert said
    assert shown.strategy == said.strategy
    # How long drafts are depends on what passes cost on this machine.
    assert shown.rate == pytest.approx(said.rate, abs=0.5)


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


def test_the_answer_of_check(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """For the prompt that is shown, with costs that a busy machine does not change."""
    shown = block(USE, "passage, short").replace("...\n", "")
    monkeypatch.setattr(check, "built_in", lambda: {"passage, short": built_in()["passage, short"]})
    assert ask(["check", "--model", "conformance/fixture"]) == 0
    assert versions(capsys.readouterr().out) == versions(shown)


def versions(text: str) -> str:
    """A text whose numbers of versions and whose device do not count."""
    return re.sub(r"(mlx|mlx-lm|device) (?:[\d.]+(?:\+lookup\.\d+)?|.*$)", r"\1 N", text, flags=re.MULTILINE)


@pytest.mark.parametrize("command", ["check", "probe", "report"])
def test_a_model_that_is_none_is_one_sentence(command: str, tmp_path: Path, capsys: Capture) -> None:
    file, untold = tmp_path / "a file", tmp_path / "untold"
    file.touch()
    untold.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURE / name, untold)
    for model in (str(file), "nowhere/nothing", str(untold)):
        assert ask([command, "--model", model]) == 3
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert model in line
        assert ("there is no tokenizer in it" in line) == (model == str(untold))
        assert said.out == ""


NEEDS = "scripts/apply.sh makes .venv/bin/python|which this command needs"
CTRL_C = "import sys; sys.argv[0] = '-m'; import conformance; raise KeyboardInterrupt"
# What a Python without packages runs, the one line that it says, and its exit status: 0, 1 and 2 are answers of check.
SAID = {
    "-m conformance check --model any": (NEEDS, 3),
    "-m conformance.lab.simulate": (NEEDS, 1),
    f"-c {shlex.quote(CTRL_C)}": ("^$", -signal.SIGINT),
}


@pytest.mark.parametrize("command", SAID)
def test_an_error_is_one_sentence(command: str) -> None:
    # With -S Python does not see the packages that are installed.
    done = subprocess.run([sys.executable, "-S", *shlex.split(command)], capture_output=True, text=True)
    said, code = SAID[command]
    assert re.search(said, done.stderr), done.stderr
    assert (done.stderr.count("\n"), done.returncode) == (int(bool(done.stderr)), code)
