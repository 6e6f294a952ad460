"""Run the scripts in a copy of the repository, whose path has spaces. What needs the network fails at once.

scripts/port.sh runs on trees with known differences from the pinned release.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from pin import Refused

from conformance import ROOT
from conformance.repository.clones import NAME, Clone, git
from conformance.series.patches import DEFAULT, RELEASES

# About this repository, whatever mlx-lm is installed.
pytestmark = pytest.mark.repository
FILE = "mlx_lm/models/cache.py"


@pytest.fixture(scope="module")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.at(tmp_path_factory.mktemp("applied") / NAME)


@pytest.fixture
def clone(applied_once: Clone, tmp_path: Path) -> Clone:
    """A copy without a checkout."""
    return applied_once.copy(tmp_path / "clone", "mlx-lm-*")


@pytest.fixture
def applied(applied_once: Clone, tmp_path: Path) -> Clone:
    """A copy with the checkout of the default release, which takes seconds to make."""
    return applied_once.copy(tmp_path / "applied")


class Case(NamedTuple):
    command: str
    # A pattern in the message.
    says: str
    # A line of the shell before it. It makes a case of a copy with a checkout if it names that.
    prepare: str = ""
    status: int = 1
    python: str = sys.executable


APPLY, EXPORT, CHECKOUT = "apply.sh --no-install", "export.sh", f"vendor/mlx-lm-{DEFAULT}"
MINE = "mine\n\nStage: caches\nDrop-when: never"
UNCOMMITTED = f"echo mine >> {CHECKOUT}/LICENSE"
# As after a git pull: the checkout has nothing that patches/ lacks.
PULLED = f"for last in patches/caches/*.patch; do :; done; echo more >> $last; git -C {CHECKOUT} status"
DAMAGED = "for f in vendor/sdist/*; do echo >> $f; done"


def committed(message: str) -> str:
    return f"{UNCOMMITTED}; git -C {CHECKOUT} commit --quiet --all --message {shlex.quote(message)}"


REFUSED = [
    Case(f"{APPLY} --release 0.1.0", r"mlx-lm 0\.1\.0 is not pinned; vendor/releases\.toml has "),
    Case(APPLY, r"has sha256 \w+, vendor/releases\.toml has \w+.* delete it", DAMAGED),
    Case(APPLY, r"could not be downloaded: .*network\? pip says: No matching", "rm -r vendor/sdist"),
    Case(APPLY, r"(?s)does not apply to .*patch failed: \S+:\d+.*port\.sh", "sed -i.old 's/^ .*$/&./' patches/fixes/*"),
    Case(APPLY, r"has other branches, tags or stashes \(other\)", f"{PULLED}; git -C {CHECKOUT} branch other"),
    Case(APPLY, r"uncommitted changes \(LICENSE\); commit them and run scripts/export\.sh", f"{UNCOMMITTED}; {PULLED}"),
    Case(APPLY, r"commits that are not in patches/\. scripts/export\.sh writes", committed(MINE)),
    Case(EXPORT, r"Run scripts/apply\.sh to make it again\.$", PULLED),
    Case(f"{EXPORT} --check", r"checkout exports: README\.md, \w+/mine\.patch, series\.", committed(MINE)),
    Case(EXPORT, "patch files that are to go", f"git -C {CHECKOUT} reset --hard HEAD~1"),
    Case(EXPORT, r"has no line 'Stage: NAME'", committed("mine")),
    Case("port.sh --source /", "/ is not a git clone of mlx-lm"),
    Case("check.sh --model other", "--model takes smollm2", status=2),
    Case("apply.sh", r"no Python 3\.11 or newer: /no\. Name one with PYTHON=", python="/no"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.command}: {re.sub('[^ a-z]', '', case.says)[:30]}")
def test_it_is_refused(case: Case, request: pytest.FixtureRequest) -> None:
    """One sentence says why, nothing is changed, and nothing is downloaded."""
    clone: Clone = request.getfixturevalue("applied" if CHECKOUT in case.prepare else "clone")
    subprocess.run(case.prepare, shell=True, cwd=clone.root, check=True, capture_output=True)
    before = clone.state()
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = clone.run(*case.command.split(), **offline, PYTHON=case.python)
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
    applied = Clone.at(tmp_path / NAME, patches=None)
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
    (clone.checkout / "LICENSE").write_text("mine")
    clone.git("commit", "--quiet", "--all", "--message", "Mine\n\nStage: fixes\nDrop-when: never")
    clone.git("am", "--quiet", *(str(clone.root / "patches" / name) for name in list(before)[first:]))
    assert re.search(r"\b1?\d\d patches, \d+ changed", clone.works("export.sh"))
    now = list(clone.patches())
    assert now[:first] + now[first + 1 :] == list(before)
    assert now[first] == "fixes/Mine.patch"
    assert "| [Mine](fixes/Mine.patch) | 0 |  | never |" in (clone.root / "patches" / "README.md").read_text()
    made = clone.git("rev-parse", "HEAD^{tree}")
    clone.apply()
    assert clone.git("rev-parse", "HEAD^{tree}") == made


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name not in ("shared.sh", "tox.sh"))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_another_shell_runs_them() -> None:
    command = ["zsh", f"{ROOT}/scripts/apply.sh", "--help"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("usage: scripts/apply.sh ")


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str) -> None:
    said = Clone(ROOT).works(script, "--help")
    assert said.startswith(f"usage: scripts/{script} ")
    assert "shellcheck" not in said


def conflict(patch: Path, tree: Path) -> None:
    """Change a line that a patch removes from FILE, so that it conflicts."""
    text = (tree / FILE).read_text()
    removed = next(line[1:] for line in patch.read_text().splitlines() if re.match(r"-\s+\w", line))
    assert removed in text
    (tree / FILE).write_text(text.replace(removed, f"{removed}  # another release has this line too", 1))


def mend(checkout: Path) -> int:
    """Take the side of the patch in each hunk, and go on as the output says. Returns how often it stopped."""
    stops = 0
    while (checkout / ".git" / "rebase-apply").exists():
        text = (checkout / FILE).read_text()
        (checkout / FILE).write_text(re.sub(r"(?ms)^<{7} .*?^={7}\n(.*?)^>{7} .*?\n", r"\1", text))
        git(checkout, "add", "--all")
        # It fails where it stops again.
        with suppress(Refused):
            git(checkout, "am", "--continue")
        stops += 1
    return stops


def test_a_clone_that_has_a_patch_is_clean(applied: Clone, tmp_path: Path) -> None:
    source = tmp_path / "my source"
    git(tmp_path, "clone", "--quiet", str(applied.checkout), str(source))
    git(source, "reset", "--quiet", "--hard", git(source, "rev-list", "--max-parents=0", "HEAD"))
    git(source, "am", "--quiet", str(applied.patch(1)))
    said = applied.works("port.sh", "--source", str(source))
    assert f"None of {len(applied.patches())} patches conflict." in said
    assert "Patch already applied" in said
    assert "All patches apply" in said
    checkout = applied.root / "vendor" / f"mlx-lm-{git(source, 'rev-parse', 'HEAD')[:12]}"
    assert git(source, "status", "--porcelain") == ""
    git(source, "fetch", "--quiet", str(checkout), "prompt-lookup:mine")
    assert git(source, "rev-parse", "mine^{tree}") == applied.git("rev-parse", "HEAD^{tree}")


def test_what_was_mended_for_a_release_becomes_its_patches(applied: Clone) -> None:
    """Each conflict in a file is told. The lines that are printed pin the release, and export writes what differs."""
    vendor, mended = applied.root / "vendor", [applied.patch(2), applied.patch(4)]
    shutil.unpack_archive(vendor / "sdist" / f"mlx_lm-{DEFAULT}.tar.gz", vendor / "made")
    tree = (vendor / "made" / f"mlx_lm-{DEFAULT}").rename(vendor / "made" / "mlx_lm-9.9.9")
    for patch in mended:
        conflict(patch, tree)
    shutil.make_archive(str(vendor / "sdist" / tree.name), "gztar", tree.parent, tree.name)
    done = applied.run("port.sh", "9.9.9")
    assert done.returncode == 3, done.stdout + done.stderr
    told = "".join(f"\n  fixes/{patch.name}: {FILE}" for patch in mended)
    assert f"\n2 of {len(applied.patches())} patches conflict:{told}\n\n" in done.stdout
    assert "/mlx-lm-9.9.9' am --continue\n" in done.stdout
    assert "under way" in applied.run("port.sh", "9.9.9").stderr
    assert mend(vendor / "mlx-lm-9.9.9") == len(mended)
    (lines,) = re.findall(r'^\[releases\."9\.9\.9"\]\nsha256 = "\w+"$', done.stdout, re.MULTILINE)
    with open(vendor / "releases.toml", "a") as file:
        file.write(f"\n{lines}\n")
    applied.works("export.sh", "--release", "9.9.9")
    assert {path.name for path in applied.root.glob("patches/9.9.9/*/*")} == {patch.name for patch in mended}
    assert "applied" in applied.apply("--release", "9.9.9")
