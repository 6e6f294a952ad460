"""What somebody tries first: --help of every command, and a model that is none."""

from __future__ import annotations

import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mlx_lm.chat
import pytest

from conformance import FIXTURE, ROOT

pytestmark = pytest.mark.selftest

ASKED = ("conformance check", "conformance probe", "conformance report")


def told(command: str, *arguments: str) -> int:
    """Run a command in this process, and return its exit status."""
    module, *first = command.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *first, *arguments])
        patch.setattr(signal, "signal", lambda *_: None)
        # A module that replaces it is to leave the next test the real one.
        patch.setattr(mlx_lm.chat, "stream_generate", mlx_lm.chat.stream_generate)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return int(ended.value.code or 0)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", [*ASKED, "conformance.lab.simulate"])
def test_help_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(command, "--help") == 0
    said = capsys.readouterr()
    assert (said.out[:6], said.err) == ("usage:", "")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", ASKED)
def test_a_model_that_is_none_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "untold").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURE / name, tmp_path / "untold")
    (tmp_path / "a file").touch()
    for model in ("a file", "nowhere/nothing", "untold"):
        assert told(command, "--model", model) == 3
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert model in line
        assert ("there is no tokenizer in it" in line) == (model == "untold")
        assert said.out == ""


NEEDS = "scripts/apply.sh makes .venv/bin/python|which this command needs"
CTRL_C = "import sys; sys.argv[0] = '-m'; import conformance; raise KeyboardInterrupt"
# What a Python without packages runs, the one line that it says, and its exit status: 0, 1 and 2 are answers of check.
SAID: list[tuple[list[str], str, int]] = [
    *((["-m", *tool.split(), "--model", "any"], NEEDS, 3) for tool in ASKED),
    (["-m", "conformance.lab.simulate"], NEEDS, 1),
    (["-c", CTRL_C], "^$", -signal.SIGINT),
]


@pytest.mark.parametrize(("run", "says", "code"), SAID, ids=[" ".join(run[1:])[:40] for run, *_ in SAID])
def test_an_error_is_one_sentence(run: list[str], says: str, code: int) -> None:
    # With -S Python does not see the packages that are installed.
    done = subprocess.run([sys.executable, "-S", *run], cwd=ROOT, capture_output=True, text=True)
    assert re.search(says, done.stderr), done.stderr
    assert (done.stderr.count("\n"), done.returncode) == (int(bool(done.stderr)), code)
