"""Run the scripts in a copy of the repository. Its path has spaces."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.repository.clones import Clone, git
from conformance.series.patches import DEFAULT as RELEASE
from conformance.series.patches import RELEASES

# About this repository, whatever mlx-lm is installed.
pytestmark = pytest.mark.repository


def test_round_trip_is_byte_for_byte(clone: Clone) -> None:
    before = clone.patches()
    shown = clone.apply()
    for number, name in enumerate(before, 1):
        assert f"applying {name} ({number}/{len(before)})" in shown
    assert clone.run("export.sh").returncode == 0
    assert clone.patches() == before
    assert clone.run("export.sh", "--check").returncode == 0
    made = clone.state()
    assert "already applied" in clone.apply()
    assert clone.state() == made


def tox_commands(clone: Clone, environments: str) -> list[list[str]]:
    """The commands that tox would run in a copy of the repository, split into words."""
    for name in ("tox.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, clone.root)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    done = subprocess.run(
        [sys.executable, "-m", "tox", "config", "-e", environments, "-k", "commands_pre", "commands"],
        cwd=clone.root,
        env=env | {"PORT_CHECKOUT": str(clone.checkout)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"^commands(_pre)? = ?", "", line) for line in done.stdout.splitlines()]
    return [shlex.split(line) for line in lines if line and not line.startswith("[")]


ENVIRONMENTS = "patched,stock-0.32.1-lowest,selftest,series,port,review,micro,bench,lint"


def test_a_path_with_spaces_is_one_word_of_a_command_of_tox(clone: Clone) -> None:
    commands = tox_commands(clone, ENVIRONMENTS)
    assert len(commands) > len(ENVIRONMENTS.split(","))
    for word in (word for command in commands for word in command):
        assert not word.endswith(str(clone.root).split()[0]), commands
        # pytest treats an option that it does not know yet as a file if it has a space.
        assert not (word.startswith("-") and str(clone.root) in word), commands


def test_the_suite_finds_its_tests_in_a_path_with_spaces(clone: Clone) -> None:
    # All tests would take as long again to collect.
    others = shutil.ignore_patterns("__pycache__", "test_[!s]*.py", "test_s[!u]*.py")
    for name in ("conformance", "docs"):
        shutil.copytree(ROOT / name, clone.root / name, ignore=others)
    (command,) = (words for words in tox_commands(clone, "patched") if "pytest" in words)
    collect = [sys.executable, *command[1:], "--numprocesses=0", "--collect-only", "-q", "-k", "test_surface"]
    done = subprocess.run(collect, cwd=clone.root, capture_output=True, text=True)
    assert re.search(r"\d+(/\d+)? tests collected", done.stdout), done.stdout + done.stderr


def test_every_user_makes_the_same_commit(applied: Clone, tmp_path: Path) -> None:
    first = applied.git("rev-parse", "HEAD")
    shutil.rmtree(applied.checkout)
    config = tmp_path / "gitconfig"
    config.write_text("[user]\nname = x\nemail = x@example.org\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n")
    done = applied.run("apply.sh", "--no-install", GIT_CONFIG_GLOBAL=str(config), GIT_AUTHOR_NAME="y", TZ="Asia/Tokyo")
    assert done.returncode == 0, done.stderr
    assert applied.git("rev-parse", "HEAD") == first


@pytest.mark.parametrize("version", [version for version in RELEASES if version != RELEASE])
def test_another_form_of_a_patch_for_a_release(applied: Clone, version: str) -> None:
    """The series applies to each release. A release can have its own forms of patches, but no patches of its own."""
    release, checkout = ("--release", version), applied.root / "vendor" / f"mlx-lm-{version}"
    folder, draft = applied.root / "patches" / version, checkout / "mlx_lm" / "draft" / "loop.py"
    applied.apply(*release)
    assert "unchanged" in applied.run("export.sh", *release).stdout
    last = list(applied.patches())[-1]

    def own() -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch")}

    before = own()
    assert last not in before
    draft.write_text(draft.read_text() + "# mine\n")
    git(checkout, "commit", "--all", "--amend", "--no-edit")
    assert f"export.sh --release {version}" in applied.refused("apply.sh", "--no-install", *release)
    assert f"patches/{version}/ is not what the checkout exports: {last}" in applied.refused(
        "export.sh", "--check", *release
    )
    assert "1 changed" in applied.run("export.sh", *release).stdout
    assert own() == before | {last}
    applied.apply(*release)
    assert draft.read_text().endswith("# mine\n")
    # A patch that patches/ makes as well needs no other form.
    draft.write_text(draft.read_text().removesuffix("# mine\n"))
    git(checkout, "commit", "--all", "--amend", "--no-edit")
    assert applied.run("export.sh", *release).returncode == 0
    assert own() == before
    (checkout / "LICENSE").write_text("mine")
    git(checkout, "commit", "--all", "--message", "mine\n\nStage: mine")
    assert "no patches of its own" in applied.refused("export.sh", *release)


def test_stage(applied: Clone) -> None:
    names = list(applied.patches())
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    for stage in (stages[-1], stages[0]):
        applied.apply("--stage", stage)
        kept = [name for name in names if stages.index(name.split("/")[0]) <= stages.index(stage)]
        assert len(applied.git("log", "--oneline").splitlines()) == 1 + len(kept)
        if kept != names:
            assert "Run scripts/apply.sh to make it again." in applied.refused("export.sh")
    # Here somebody has taken a commit out: to make the checkout again would bring it back.
    applied.git("reset", "--quiet", "--hard", "HEAD~1")
    assert "delete the patch files" in applied.refused("export.sh")
    assert f"the stages are {', '.join(stages)}." in applied.refused("apply.sh", "--stage", "nosuch", "--no-install")


@pytest.mark.parametrize(
    ("trailers", "said"),
    [
        ("", "has no line 'Stage: NAME'"),
        ("Stage: {first}\nDrop-when: never", "comes after a patch of the stage"),
        ("Stage: {last}", "has no line 'Drop-when: ...'"),
    ],
)
def test_a_commit_without_a_place_is_refused(applied: Clone, trailers: str, said: str) -> None:
    before = applied.patches()
    stages = [name.split("/")[0] for name in before]
    message = f"mine\n\n{trailers.format(first=stages[0], last=stages[-1])}"
    (applied.checkout / "LICENSE").write_text("mine")
    applied.git("commit", "--quiet", "--all", "--message", message)
    assert said in applied.refused("export.sh")
    assert applied.patches() == before


def test_a_patch_more_in_the_middle_renames_nothing(clone: Clone) -> None:
    clone.apply("--stage", "fixes")
    before = clone.patches()
    first = len(clone.git("log", "--oneline").splitlines()) - 1
    (clone.checkout / "LICENSE").write_text("mine")
    clone.git(
        "commit",
        "--quiet",
        "--all",
        "--message",
        f"Mine\n\nStage: {next(iter(before)).split('/')[0]}\nDrop-when: never",
    )
    clone.git("am", "--quiet", *(str(clone.root / "patches" / name) for name in list(before)[first:]))
    assert clone.run("export.sh").returncode == 0
    now = list(clone.patches())
    assert now[:first] + now[first + 1 :] == list(before)
    assert now[first].endswith("/Mine.patch")
    assert "| [Mine](" in (clone.root / "patches" / "README.md").read_text()


def test_patches_that_changed_since_are_not_overwritten(applied: Clone) -> None:
    """As after a git pull: the checkout has nothing that patches/ lacks."""
    last = applied.patch(0)
    last.write_text(last.read_text().replace("Subject: [PATCH] ", "Subject: [PATCH] Mended: ", 1))
    pulled = applied.patches()
    for options in (["--check"], []):
        assert "Run scripts/apply.sh to make it again." in applied.refused("export.sh", *options)
        assert applied.patches() == pulled
    applied.apply()
    assert "Mended: " in applied.git("log", "-1", "--format=%s")


def test_killed_at_any_point_leaves_nothing_half_patched(clone: Clone) -> None:
    whole = len(clone.patches()) + 1
    for delay in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0, 1.3):
        command = [str(clone.root / "scripts" / "apply.sh"), "--no-install"]
        process = subprocess.Popen(
            command, env=clone.env({}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
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


def test_damaged_sdist(clone: Clone) -> None:
    sdist = clone.root / "vendor" / "sdist" / f"mlx_lm-{RELEASE}.tar.gz"
    sdist.write_bytes(sdist.read_bytes()[:-100])
    message = clone.refused("apply.sh", "--no-install")
    assert "sha256" in message
    assert "delete it" in message


def test_wrong_hash_in_the_pin(clone: Clone) -> None:
    pin = clone.root / "vendor" / "releases.toml"
    pin.write_text(pin.read_text().replace("1af8a92f", "00000000"))
    assert "sha256" in clone.refused("apply.sh", "--no-install")
    shutil.rmtree(clone.root / "vendor" / "sdist")
    assert "pinned sha256" in clone.refused("apply.sh", "--no-install")


def test_no_network(clone: Clone) -> None:
    shutil.rmtree(clone.root / "vendor" / "sdist")
    message = clone.refused("apply.sh", "--no-install", PIP_NO_INDEX="1")
    assert "is the network there?" in message
    assert "ERROR" not in message
    assert len(message.splitlines()) == 1


def test_no_network_when_it_is_built(applied: Clone) -> None:
    message = applied.refused("apply.sh", PIP_NO_INDEX="1")
    assert "is the network there?" in message
    assert len(message.splitlines()) == 1


def test_unknown_release(clone: Clone) -> None:
    assert "0.1.0 is not pinned" in clone.refused("apply.sh", "--release", "0.1.0")


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has one mlx")
def test_unknown_extra(clone: Clone) -> None:
    assert "cpu, cuda12 or cuda13" in clone.refused("apply.sh", MLX_EXTRA="rocm")


def test_a_patch_that_does_not_apply(clone: Clone) -> None:
    patch = clone.patch(3)
    before, cache = re.split(r"(?m)^(?=diff --git a/mlx_lm/models/cache.py)", patch.read_text())
    patch.write_text(before + re.sub(r"(?m)^( +\w.*)$", r"\1  # another context", cache, count=1))
    message = clone.refused("apply.sh", "--no-install")
    assert f"{patch.name} does not apply to mlx-lm {RELEASE}" in message
    assert "patch failed: mlx_lm/models/cache.py:" in message
    assert f"scripts/port.sh {RELEASE} leaves it for you to mend" in message
    assert clone.run("port.sh", RELEASE).returncode == 3
    assert (clone.checkout / ".git" / "rebase-apply").is_dir()


def test_commits_that_are_not_in_patches_are_kept(applied: Clone) -> None:
    applied.commit_line("mine")
    mine = applied.git("rev-parse", "HEAD")
    assert "scripts/export.sh" in applied.refused("apply.sh", "--no-install")
    assert applied.git("rev-parse", "HEAD") == mine
    assert applied.run("export.sh", "--check").returncode == 1
    assert applied.run("export.sh").returncode == 0
    assert any(b"# mine" in patch for patch in applied.patches().values())
    applied.apply()
    assert "# mine" in (applied.checkout / "mlx_lm" / "draft" / "loop.py").read_text()


def test_uncommitted_changes_and_branches_are_kept(clone: Clone) -> None:
    clone.apply("--stage", "fixes")
    clone.git("branch", "other")
    assert "other" in clone.refused("apply.sh", "--no-install")
    clone.git("branch", "--delete", "--force", "other")
    (clone.checkout / "LICENSE").write_text("mine")
    assert "LICENSE" in clone.refused("apply.sh", "--no-install")
    assert "uncommitted" in clone.refused("export.sh")


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name not in ("python.sh", "tox.sh"))
)
def test_help(script: str) -> None:
    done = Clone(ROOT).run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert f"scripts/{script}" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("abc",), ("--bogus",), ("6", "7")], ids=str)
def test_what_is_no_patch_is_not_reviewed(arguments: tuple[str, ...]) -> None:
    done = Clone(ROOT).run("review.sh", *arguments)
    assert done.returncode == 2
    assert "usage: scripts/review.sh" in done.stderr
