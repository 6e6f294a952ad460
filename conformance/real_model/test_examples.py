"""The examples of README.md and docs/use.md with SmolLM2: what they print is what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.doors.server.process import serve
from conformance.pages import README, USE, block, drafting, text_of

pytestmark = pytest.mark.real_model

MODEL, PROMPT = "vendor/smollm2", "\u203a "
TIMEOUT = 900.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the commands of the page find the model, and may write a file."""
    (tmp_path / "vendor").symlink_to(ROOT / "vendor")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(commands: str, typed: str = "") -> str:
    commands = commands.replace(".venv/bin", f"'{Path(sys.executable).parent}'")
    done = subprocess.run(["bash", "-c", commands], input=typed, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def shown_after(command: str, page: str) -> tuple[str, float]:
    """The first line about drafts that the page shows after a command."""
    rest = text_of(page).split(command, 1)[1]
    found = re.search(r".*tokens-per-forward", rest)
    assert found is not None
    return drafting(found[0])


def check_drafts(said: str, command: str, page: str = USE) -> None:
    """The drafts are those of the page, unless they do not pay on a machine that is busy."""
    shown, rate = shown_after(command, page)
    assert drafting(said)[0] == shown
    if "take too long here" not in said:
        assert drafting(said)[1] == pytest.approx(rate, abs=0.5)


def test_a_prompt() -> None:
    command = f"mlx_lm.generate --model {MODEL}"
    check_drafts(printed(block(USE, command)), command)


@pytest.mark.parametrize("page", [README, USE])
def test_a_chat(page: str) -> None:
    command = f"mlx_lm.chat --model {MODEL}"
    typed, answer = block(page, PROMPT).removeprefix(PROMPT).split("\n", 1)
    said = printed(block(page, command), f"{typed}\nq\n")
    assert answer.partition("\n  Drafting")[0] in said
    check_drafts(said, command, page)


def test_a_client(capsys: pytest.CaptureFixture[str]) -> None:
    printed(block(USE, "cat > shop.py").split("EOF\n")[0] + "EOF\n")
    program = block(USE, "client.chat.completions.create")
    shown = block(USE, "tokens of the prediction are in the answer\n")
    with serve(model=MODEL) as server:
        exec(program.replace("http://localhost:8080", server.url), {})
        log = server.log
    assert capsys.readouterr().out == shown
    check_drafts(log, "client.chat.completions.create")
