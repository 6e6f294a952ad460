"""What somebody tries first: a command without its packages, and a model that is none."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main as ask

pytestmark = pytest.mark.selftest


@pytest.mark.parametrize("command", ["check", "probe", "report"])
def test_a_model_that_is_none_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "untold").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURE / name, tmp_path / "untold")
    (tmp_path / "a file").touch()
    for model in ("a file", "nowhere/nothing", "untold"):
        assert ask([command, "--model", model]) == 3
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert model in line
        assert ("there is no tokenizer in it" in line) == (model == "untold")
        assert said.out == ""


NEEDS = "scripts/apply.sh makes .venv/bin/python|which this command needs"
CTRL_C = "import sys; sys.argv[0] = '-m'; import conformance; raise KeyboardInterrupt"
# What a Python without packages runs, the one line that it says, and its exit status: 0, 1 and 2 are answers of check.
SAID: list[tuple[list[str], str, int]] = [
    (["-m", "conformance", "check", "--model", "any"], NEEDS, 3),
    (["-m", "conformance.lab.simulate"], NEEDS, 1),
    (["-c", CTRL_C], "^$", -signal.SIGINT),
]


@pytest.mark.parametrize(("run", "says", "code"), SAID, ids=[" ".join(run[1:])[:40] for run, *_ in SAID])
def test_an_error_is_one_sentence(run: list[str], says: str, code: int) -> None:
    # With -S Python does not see the packages that are installed.
    done = subprocess.run([sys.executable, "-S", *run], cwd=ROOT, capture_output=True, text=True)
    assert re.search(says, done.stderr), done.stderr
    assert (done.stderr.count("\n"), done.returncode) == (int(bool(done.stderr)), code)
