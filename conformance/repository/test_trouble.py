"""What goes wrong around the scripts is one sentence, and changes nothing: disks, other Pythons, Ctrl-C."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pin
import pytest

from conformance.repository.clones import Clone

pytestmark = pytest.mark.repository


def raised(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pin.Refused("it cannot be."), "error: it cannot be.\n"),
        (OSError(errno.ENOSPC, "No space left on device", "vendor/x"), "error: No space left on device: vendor/x\n"),
        (OSError(errno.ENOSPC, "No space left on device"), f"error: No space left on device: {pin.NOT_WRITTEN}\n"),
        (PermissionError(errno.EACCES, "Permission denied", "vendor"), "error: Permission denied: vendor\n"),
    ],
    ids=["refused", "full", "full-somewhere", "read-only"],
)
def test_an_error_is_one_sentence(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pin.ended(raised(error), refused=3) == 3
    assert capsys.readouterr().err == said


def test_ctrl_c_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert pin.ended(raised(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.strip() == "error: stopped. The same command starts again where this one began."


@pytest.mark.planted
def test_a_fault_of_a_script_is_no_sentence() -> None:
    with pytest.raises(ZeroDivisionError):
        pin.ended(raised(ZeroDivisionError()))


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("words", ["No space left on device", "Out of diskspace"])
def test_a_full_disk_is_not_a_patch_that_does_not_apply(clone: Clone, tmp_path: Path, words: str) -> None:
    """A git in front of the real one fails at the third patch, as it does when the disk is full."""
    git, folder, third = shutil.which("git"), tmp_path / "bin", list(clone.patches())[2]
    script(
        folder / "git",
        f'case "$*" in *am*--quiet*{third}*) echo "error: unable to write file: {words}" >&2; exit 128 ;; esac\n'
        f'exec {git} "$@"\n',
    )
    said = clone.refused("apply.sh", "--no-install", PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert said.startswith(f"error: {words}: ")
    assert "does not apply" not in said
    assert not list((clone.root / "vendor").glob(".tmp-*"))


def test_a_venv_of_another_python_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "venv"
    venv.create(path)
    library = path / "lib" / "library"
    library.touch()
    pin.make_venv(path)
    assert pin.made_by_this_python(path)
    assert library.exists()
    config = path / "pyvenv.cfg"
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    assert not pin.made_by_this_python(path)
    pin.make_venv(path)
    assert pin.made_by_this_python(path)
    assert not library.exists()


def test_a_disk_that_is_too_full_for_a_venv_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pip of a venv does not say why it fails."""
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", "echo failed; exit 1\n")))
    with pytest.raises(pin.Refused, match=r"python3-venv.* It says: failed"):
        pin.make_venv(tmp_path / "venv")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(pin.Refused, match="No space left on device: "):
        pin.make_venv(tmp_path / "venv")


def stand_in_for_tox(clone: Clone, text: str) -> None:
    """Put a shell script in the place of tox and of the Python that runs it."""
    for name in ("tox", "python"):
        script(clone.root / ".venv-tox" / "bin" / name, text)


def test_a_scorecard_without_a_run_writes_nothing(clone: Clone) -> None:
    """tox knows no such environment."""
    stand_in_for_tox(clone, 'echo "no such environment" >&2\nexit 254\n')
    before = clone.state()
    done = clone.run("scorecard.sh", "nosuch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: no environment ran, so nothing was written")
    assert clone.state() == before


def test_a_scorecard_shows_this_run_beside_the_older_ones(clone: Clone, tmp_path: Path) -> None:
    """What a stage or a model left is no run of the whole suite."""
    folder = clone.root / ".tox" / "scorecards"
    folder.mkdir(parents=True)
    (folder / "stock.jsonl").touch()
    stand_in_for_tox(clone, "cd .tox/scorecards\ntouch patched.jsonl stage.jsonl smollm2.jsonl\nexit 1\n")
    done = clone.run("scorecard.sh", "patched", PYTHON=str(script(tmp_path / "python", 'echo "$@"\n')))
    assert done.returncode == 1
    results = [f".tox/scorecards/{name}.jsonl" for name in ("patched", "stock")]
    assert f"-m conformance.scorecard {' '.join(results)} --page .tox/scorecards/README.md --readme" in done.stdout


def test_tox_that_cannot_be_installed_is_one_sentence(clone: Clone) -> None:
    done = clone.run("tox.sh", PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: tox could not be installed")
