"""Run the scripts in a copy of the repository, whose path has spaces. What needs the network fails at once."""

from __future__ import annotations

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
from typing import NamedTuple

import apply
import pin
import pytest

from conformance import ROOT
from conformance.repository.clones import Clone, git
from conformance.repository.conftest import NAME
from conformance.series.patches import DEFAULT, RELEASES

# About this repository, whatever mlx-lm is installed.
pytestmark = pytest.mark.repository


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


class Case(NamedTuple):
    command: str
    # A pattern in the message.
    says: str
    # A line of the shell before it. It makes a case of a copy with a checkout if it names that.
    prepare: str = ""
    status: int = 1
    python: str = sys.executable


APPLY, EXPORT, CHECKOUT = "apply.sh --no-install", "export.sh", f"vendor/mlx-lm-{DEFAULT}"
# What pip finds in the place of the package index. pip takes spaces for the ends of names.
INDEX = "mv vendor/sdist ../index"
REPINNED = f"""{INDEX}; sed -i.old 's/sha256 = "......../sha256 = "00000000/' vendor/releases.toml"""
# As after a git pull: the checkout has nothing that patches/ lacks.
PULLED = f"for last in patches/caches/*.patch; do :; done; echo more >> $last; git -C {CHECKOUT} status"
UNCOMMITTED = f"echo mine >> {CHECKOUT}/LICENSE"
MINE = "mine\n\nStage: caches\nDrop-when: never"
# A git in front of the real one fails as it does when the disk is full.
FULL_DISK = (
    """mkdir ../bin; printf '#!/bin/sh\\ncase "$*" in *" am "*) echo "No space left on device" >&2; exit 128 ;; esac"""
    """\\nexec %s "$@"\\n' "$(command -v git)" > ../bin/git; chmod +x ../bin/git"""
)
DAMAGED, OTHER_CONTEXT = "for f in vendor/sdist/*; do echo >> $f; done", "sed -i.old 's/^ .*$/&./' patches/fixes/*"
NOT_PYTHON = r"no Python 3\.11 or newer: (/no|false)\. Name one with PYTHON="


def committed(message: str) -> str:
    return f"{UNCOMMITTED}; git -C {CHECKOUT} commit --quiet --all --message {shlex.quote(message)}"


REFUSED = [
    Case(f"{APPLY} --release 0.1.0", r"mlx-lm 0\.1\.0 is not pinned; vendor/releases\.toml has "),
    Case(f"{APPLY} --stage nosuch", "--stage nosuch: the stages are fixes, caches"),
    Case(APPLY, r"has sha256 \w+, vendor/releases\.toml has 1af8a92f.* delete it", DAMAGED),
    Case(APPLY, "does not have the pinned sha256. Nothing was changed", REPINNED),
    Case(APPLY, r"could not be downloaded .*network", "rm -r vendor/sdist"),
    Case(APPLY, r"(?s)does not apply to mlx-lm.*patch failed: \S+:\d+.*scripts/port\.sh", OTHER_CONTEXT),
    Case(APPLY, "^error: No space left on device: ", FULL_DISK),
    Case(
        APPLY,
        r"has other branches, tags or stashes \(other\); move it away",
        f"{PULLED}; git -C {CHECKOUT} branch other",
    ),
    Case(APPLY, r"uncommitted changes \(LICENSE\); commit them and run scripts/export\.sh", f"{UNCOMMITTED}; {PULLED}"),
    Case(APPLY, r"commits that are not in patches/\. scripts/export\.sh writes", committed(MINE)),
    Case("apply.sh", r"is the network there\? Then run the same command again\.$", f"git -C {CHECKOUT} status"),
    Case(EXPORT, "is not there; scripts/apply.sh makes it"),
    Case(EXPORT, "has uncommitted changes; commit them first", UNCOMMITTED),
    Case(EXPORT, r"Run scripts/apply\.sh to make it again\.$", PULLED),
    Case(f"{EXPORT} --check", r"checkout exports: README\.md, \w+/mine\.patch, series\.", committed(MINE)),
    Case(EXPORT, "patch files that are to go", f"git -C {CHECKOUT} reset --hard HEAD~1"),
    Case(EXPORT, r"has no line 'Stage: NAME'", committed("mine")),
    Case(EXPORT, "comes after a patch of the stage", committed(MINE.replace("caches", "fixes"))),
    Case("port.sh 0.0.99", "could not be downloaded", INDEX),
    Case("port.sh --source /", "/ is not a git clone of mlx-lm"),
    Case("check.sh --model other", "--model takes smollm2", status=2),
    Case("review.sh 6 7", r"scripts/review\.sh \[-h\] N", status=2),
    Case("review.sh 999", "the series has", status=2),
    Case("report.sh", r"scripts/report\.sh --model MODEL", status=2),
    Case("apply.sh", NOT_PYTHON, python="/no"),
    Case("tox.sh", NOT_PYTHON, python="false"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.command}: {re.sub('[^ a-z]', '', case.says)[:30]}")
def test_it_is_refused(case: Case, request: pytest.FixtureRequest) -> None:
    """One sentence says why, nothing is changed, and nothing is downloaded."""
    clone: Clone = request.getfixturevalue("applied" if CHECKOUT in case.prepare else "clone")
    subprocess.run(case.prepare, shell=True, cwd=clone.root, check=True, capture_output=True)
    before, parent = clone.state(), clone.root.parent
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(parent / "index"), "PIP_CONFIG_FILE": os.devnull}
    path = f"{parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = clone.run(*case.command.split(), **offline, PYTHON=case.python, PATH=path)
    assert done.returncode == case.status, done.stdout + done.stderr
    assert done.stderr.startswith(("error: ", "usage: ")), done.stderr
    assert re.search(case.says, done.stderr, re.MULTILINE), done.stderr
    assert "ERROR" not in done.stderr
    assert sorted(name for name, now in clone.state().items() if before.get(name) != now) == []
    assert not list((clone.root / "vendor").glob(".tmp-*"))


def test_round_trip_is_byte_for_byte(clone: Clone, applied_once: Clone, tmp_path: Path) -> None:
    """Every user makes the same commits, after a run that was killed at any point, with sh, through a link, and with a
    git that is set up otherwise."""
    before, config, link = clone.patches(), tmp_path / "gitconfig", tmp_path / "a link"
    config.write_text("[user]\nname = x\nemail = x@example.org\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n")
    link.symlink_to(clone.root / "scripts" / "apply.sh")
    command = ["sh", str(link), "--no-install"]
    env = clone.env | {"GIT_CONFIG_GLOBAL": str(config), "GIT_AUTHOR_NAME": "y", "TZ": "Asia/Tokyo"}
    for delay in (0.1, 0.3, 0.6, 0.9, 1.3):
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if clone.checkout.exists():
            assert clone.git("rev-parse", "HEAD") == applied_once.git("rev-parse", "HEAD")
            assert clone.git("status", "--porcelain") == ""
            shutil.rmtree(clone.checkout)
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"+lookup.{len(before)} in " in done.stdout
    assert clone.git("rev-parse", "HEAD") == applied_once.git("rev-parse", "HEAD")
    assert "unchanged" in clone.works("export.sh")
    assert clone.patches() == before
    clone.works("export.sh", "--check")
    assert not list((clone.root / "vendor").glob(".tmp-*"))
    made = clone.state()
    assert "already applied" in clone.apply()
    assert clone.state() == made


@pytest.mark.parametrize("version", [version for version in RELEASES if version != DEFAULT])
def test_the_series_serves_each_release(version: str, tmp_path: Path) -> None:
    """All patches apply. A release can have its own forms of patches, but no patches of its own."""
    applied = Clone.at(tmp_path / NAME, patches=None, applied=True)
    release, checkout = ("--release", version), applied.root / "vendor" / f"mlx-lm-{version}"
    applied.apply(*release)
    assert "unchanged" in applied.works("export.sh", *release)
    (checkout / "LICENSE").write_text("mine")
    git(checkout, "commit", "--quiet", "--all", "--message", "mine\n\nStage: mine\nDrop-when: never")
    assert "no patches of its own" in applied.run("export.sh", *release).stderr


def test_what_is_committed_becomes_a_patch_and_renames_nothing(clone: Clone) -> None:
    """In the middle of the series; what is exported is applied as it was."""
    clone.apply("--stage", "fixes")
    before = clone.patches()
    first = len(clone.git("log", "--oneline").splitlines()) - 1
    assert first == sum(name.startswith("fixes/") for name in before)
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


def test_a_venv_of_another_python_is_not_used(tmp_path: Path) -> None:
    venv.create(tmp_path)
    config = tmp_path / "pyvenv.cfg"
    assert pin.of_this_python(tmp_path)
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    assert not pin.of_this_python(tmp_path)


def test_the_demo_does_what_it_says(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    this, run = [sys.executable, "-m", "mlx_lm", "generate"], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda demo, **how: run([*this, *demo[1:]], **how))
    assert apply.show() == 0
    shown = r"(?s)count \+= n.*\nDrafting: .*\nnext: (\.\./)*scripts/model\.sh makes a real model"
    assert re.search(shown, capfd.readouterr().out)


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name not in ("shared.sh", "tox.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str) -> None:
    said = Clone(ROOT).works(script, "--help")
    assert said.startswith(f"usage: scripts/{script} ")
    assert "shellcheck" not in said


def test_a_path_with_spaces_is_one_word_of_a_command_of_tox(clone: Clone) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    config = [sys.executable, "-m", "tox", "config", "-k", "commands_pre", "commands", "-e", "patched,stock,port"]
    env |= {"PORT_CHECKOUT": str(clone.checkout)}
    done = subprocess.run(config, cwd=clone.root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.sub(r"(?m)^commands(_pre)? = ?|^\[.*", "", done.stdout).splitlines()
    words = [word for line in lines for word in shlex.split(line)]
    assert {str(clone.root / "scripts" / "environments.py"), str(clone.checkout)} <= set(words)
    assert not [word for word in words if word.endswith(str(clone.root).split()[0])]
    # pytest treats an option that it does not know yet as a file if it has a space.
    assert not [word for word in words if word.startswith("-") and str(clone.root) in word]
