"""Run the scripts in a copy of the repository, whose path has spaces. test_refusals.py has what they refuse."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pin
import pytest

from conformance import ROOT
from conformance.repository.clones import Clone, git
from conformance.series.patches import DEFAULT, RELEASES

# About this repository, whatever mlx-lm is installed.
pytestmark = pytest.mark.repository
LAST = "patches/" + (ROOT / "patches" / "series").read_text().split()[-1]


def test_round_trip_is_byte_for_byte(clone: Clone) -> None:
    before = clone.patches()
    shown = clone.apply()
    for number, name in enumerate(before, 1):
        assert f"applying {name} ({number}/{len(before)})" in shown
    assert "unchanged" in clone.works("export.sh")
    assert clone.patches() == before
    clone.works("export.sh", "--check")
    made = clone.state()
    assert "already applied" in clone.apply()
    assert clone.state() == made


def test_every_user_makes_the_same_commit(applied: Clone, tmp_path: Path) -> None:
    """Also through a link, and with a git that is set up otherwise."""
    first = applied.git("rev-parse", "HEAD")
    shutil.rmtree(applied.checkout)
    config, link = tmp_path / "gitconfig", tmp_path / "a link"
    config.write_text("[user]\nname = x\nemail = x@example.org\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n")
    link.symlink_to(applied.root / "scripts" / "apply.sh")
    other = {"GIT_CONFIG_GLOBAL": str(config), "GIT_AUTHOR_NAME": "y", "TZ": "Asia/Tokyo"}
    done = subprocess.run([link, "--no-install"], cwd="/", env=applied.env | other, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert applied.git("rev-parse", "HEAD") == first


@pytest.mark.parametrize("version", [version for version in RELEASES if version != DEFAULT])
def test_the_series_serves_each_release(applied: Clone, version: str) -> None:
    """A release can have its own forms of patches, but no patches of its own."""
    release, checkout = ("--release", version), applied.root / "vendor" / f"mlx-lm-{version}"
    applied.apply(*release)
    assert "unchanged" in applied.works("export.sh", *release)
    (checkout / "LICENSE").write_text("mine")
    git(checkout, "commit", "--quiet", "--all", "--message", "mine\n\nStage: mine\nDrop-when: never")
    assert "no patches of its own" in applied.refused("export.sh", *release)
    git(checkout, "reset", "--quiet", "--soft", "HEAD^")
    git(checkout, "commit", "--quiet", "--amend", "--no-edit")
    said = applied.refused("export.sh", "--check", *release)
    assert f"patches/{version}/ is not what the checkout exports: {Path(LAST).parent.name}/" in said
    assert f"Run scripts/export.sh --release {version}." in said


def test_stage(applied: Clone) -> None:
    names = list(applied.patches())
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    for stage in (stages[-1], stages[0]):
        applied.apply("--stage", stage)
        kept = [name for name in names if stages.index(name.split("/")[0]) <= stages.index(stage)]
        assert len(applied.git("log", "--oneline").splitlines()) == 1 + len(kept)


def test_what_is_committed_becomes_a_patch_and_renames_nothing(clone: Clone) -> None:
    """In the middle of the series; what is exported is applied as it was."""
    clone.apply("--stage", "fixes")
    before = clone.patches()
    first = len(clone.git("log", "--oneline").splitlines()) - 1
    clone.commit("Mine\n\nStage: fixes\nDrop-when: never")
    clone.git("am", "--quiet", *(str(clone.root / "patches" / name) for name in list(before)[first:]))
    assert re.search(r"\b1?\d\d patches, \d+ changed", clone.works("export.sh"))
    now = list(clone.patches())
    assert now[:first] + now[first + 1 :] == list(before)
    assert now[first] == "fixes/Mine.patch"
    assert "| [Mine](fixes/Mine.patch) | 0 |  | never |" in (clone.root / "patches" / "README.md").read_text()
    made = clone.git("rev-parse", "HEAD^{tree}")
    clone.apply()
    assert clone.git("rev-parse", "HEAD^{tree}") == made


def test_killed_at_any_point_leaves_nothing_half_patched(clone: Clone) -> None:
    whole = len(clone.patches()) + 1
    command = [str(clone.root / "scripts" / "apply.sh"), "--no-install"]
    for delay in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0, 1.3):
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=clone.env, stdout=quiet, stderr=quiet, start_new_session=True)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if clone.checkout.exists():
            assert len(clone.git("log", "--oneline").splitlines()) == whole
            assert clone.git("status", "--porcelain") == ""
            shutil.rmtree(clone.checkout)
    clone.apply()
    assert len(clone.git("log", "--oneline").splitlines()) == whole
    assert not list((clone.root / "vendor").glob(".tmp-*"))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def test_a_full_disk_is_not_a_patch_that_does_not_apply(clone: Clone, tmp_path: Path) -> None:
    """A git in front of the real one fails as it does when the disk is full."""
    full = 'case "$*" in *" am "*) echo "error: unable to write file: No space left on device" >&2; exit 128 ;; esac'
    folder = program(tmp_path / "bin" / "git", f'{full}\nexec {shutil.which("git")} "$@"\n').parent
    said = clone.refused("apply.sh", "--no-install", PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert said.startswith("error: No space left on device: ")
    assert not list((clone.root / "vendor").glob(".tmp-*"))


@pytest.mark.parametrize(
    ("error", "said", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "vendor/x"), "error: No space left on device: vendor/x\n", 1),
        (PermissionError(errno.EACCES, "Permission denied", "vendor"), "error: Permission denied: vendor\n", 1),
        (KeyboardInterrupt(), "\nerror: stopped. The same command starts again where this one began.\n", 130),
    ],
    ids=["full", "read-only", "ctrl-c"],
)
def test_what_stops_a_script_is_one_sentence(
    error: BaseException, said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    assert pin.ended(command) == status
    assert capsys.readouterr().err == said


def test_a_venv_of_another_python_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "venv"
    venv.create(path)
    library, config = path / "lib" / "library", path / "pyvenv.cfg"
    library.touch()
    pin.make_venv(path)
    assert library.exists()
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    pin.make_venv(path)
    assert not library.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has one mlx")
def test_an_extra_that_there_is_not(clone: Clone) -> None:
    assert "cpu, cuda12 or cuda13" in clone.refused("apply.sh", MLX_EXTRA="rocm")


def test_a_model_that_is_there_is_not_made_again(clone: Clone) -> None:
    (clone.root / "vendor" / "smollm2").mkdir()
    program(clone.root / ".venv" / "bin" / "mlx_lm.generate", "")
    assert "already there: SmolLM2-135M-Instruct" in clone.works("model.sh", PIP_NO_INDEX="1")


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name not in ("shared.sh", "tox.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str) -> None:
    said = Clone(ROOT).works(script, "--help")
    assert said.startswith(f"usage: scripts/{script} ")
    assert "shellcheck" not in said


ENVIRONMENTS = "patched,stock-0.32.1-lowest,selftest,series,port,review,micro,bench,lint"


def test_a_path_with_spaces_is_one_word_of_a_command_of_tox(clone: Clone) -> None:
    for name in ("tox.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, clone.root)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    config = [sys.executable, "-m", "tox", "config", "-e", ENVIRONMENTS, "-k", "commands_pre", "commands"]
    env |= {"PORT_CHECKOUT": str(clone.checkout)}
    done = subprocess.run(config, cwd=clone.root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"^commands(_pre)? = ?", "", line) for line in done.stdout.splitlines()]
    commands = [shlex.split(line) for line in lines if line and not line.startswith("[")]
    assert len(commands) > len(ENVIRONMENTS.split(","))
    for word in (word for command in commands for word in command):
        assert not word.endswith(str(clone.root).split()[0]), word
        # pytest treats an option that it does not know yet as a file if it has a space.
        assert not (word.startswith("-") and str(clone.root) in word), word


def test_tox_that_cannot_be_installed_is_one_sentence(clone: Clone) -> None:
    done = clone.run("tox.sh", PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: tox could not be installed: is the network there?")


@pytest.mark.parametrize("ran", ["", "cd .tox/scorecards && touch patched.jsonl stage.jsonl smollm2.jsonl"])
def test_a_scorecard_shows_this_run_beside_the_older_ones(clone: Clone, tmp_path: Path, ran: str) -> None:
    """What a stage or a model left is no run of the whole suite. Where nothing ran, nothing is written."""
    folder = clone.root / ".tox" / "scorecards"
    folder.mkdir(parents=True)
    for name in ("tox", "python"):
        program(clone.root / ".venv-tox" / "bin" / name, f"{ran}\nexit 1\n")
    if ran:
        (folder / "stock.jsonl").touch()
    done = clone.run("scorecard.sh", "patched", PYTHON=str(program(tmp_path / "python", 'echo "$@"\n')))
    assert done.returncode == 1
    results = ".tox/scorecards/patched.jsonl .tox/scorecards/stock.jsonl"
    shown = f"-m conformance.scorecard {results} --page .tox/scorecards/README.md --readme docs/releases.md"
    assert (shown in done.stdout) == bool(ran)
    assert ("error: no environment ran, so nothing was written" in done.stderr) != bool(ran)
