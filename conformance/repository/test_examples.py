"""The examples of README.md and docs/: each runs, drafts something, and prints what the page shows."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from typing import Any

import pytest

from conformance import ROOT
from conformance.__main__ import main as ask
from conformance.check import check
from conformance.check.prompts import built_in
from conformance.pages import DRAFTING, README, USE, block, blocks, drafting, text_of
from conformance.series.patches import PATCHES

Capture = pytest.CaptureFixture[str]

pytestmark = [pytest.mark.selftest, pytest.mark.usefixtures("known_costs")]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


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
    # How long drafts are depends on what passes cost on this machine.
    assert shown[0] == said[0]
    assert shown[1] == pytest.approx(said[1], abs=0.5)


@pytest.mark.parametrize("page", [USE, DRAFTING])
def test_each_program_drafts(page: str, capsys: Capture, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_number_of_patches() -> None:
    text = text_of(README) + text_of(USE) + text_of("CHANGELOG.md").partition("\n- ")[0]
    shown = re.findall(r"lookup\.(\d+)|\(\d+/(\d+)\)|(?:^|with the |## )(\d+)(?: patches|$)", text, re.MULTILINE)
    assert {int("".join(number)) for number in shown} == {len(PATCHES)}
