"""Run scripts/apply.sh --source on a user's own clone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conformance.testing.clones import Clone, clone, git

__all__ = ["clone"]

pytestmark = pytest.mark.repository


@pytest.fixture
def source(clone: Clone, tmp_path: Path) -> Path:
    """A user's clone of mlx-lm with two branches, one of them checked out, and an untracked file."""
    clone.apply("--until", "0")
    source = tmp_path / "my clone"
    git(tmp_path, "clone", "--quiet", str(clone.checkout), str(source))
    git(source, "branch", "--move", "main")
    git(source, "switch", "--quiet", "--create", "work")
    (source / "notes.txt").write_text("untracked")
    return source


def test_source_gets_one_branch(clone: Clone, source: Path) -> None:
    before = git(source, "rev-parse", "HEAD")
    assert "applied: branch prompt-lookup" in clone.apply("--source", str(source))
    assert git(source, "rev-parse", "main", "work", "HEAD").split() == [before] * 3
    assert git(source, "branch", "--show-current") == "work"
    assert git(source, "status", "--porcelain") == "?? notes.txt"
    assert len(git(source, "log", "--oneline", "main..prompt-lookup").splitlines()) == len(clone.patches())
    assert "already applied" in clone.apply("--source", str(source))


def test_a_source_that_has_moved_on(clone: Clone, source: Path) -> None:
    """The message names the patch, the file and the next command, and no command that is only for releases."""
    path = source / "mlx_lm" / "models" / "cache.py"
    path.write_text(path.read_text().replace("class ConcatenateKVCache(_BaseCache):", "class Another(_BaseCache):"))
    path.write_text(re.sub(r"(?m)^( +)def trim\(self, n\):", r"\1def trim(self, n, /):", path.read_text()))
    git(source, "commit", "--quiet", "--all", "--message", "upstream goes on")
    message = clone.refused("apply.sh", "--source", str(source), "--no-install")
    where = re.escape(f"{source} at {git(source, 'rev-parse', 'HEAD')[:12]}")
    assert re.search(rf"^error: (\S+\.patch) does not apply to {where}", message)
    assert "mlx_lm/models/cache.py" in message
    assert f"scripts/port.sh --source {shlex.quote(str(source))}" in message
    assert not re.search("--until|--release|export.sh", message)
    assert git(source, "branch", "--list", "prompt-lookup") == ""


def test_the_version_of_a_source_is_honest(clone: Clone, source: Path) -> None:
    """The version is that of a release only for exactly that release. Else it names the commit."""
    head = git(source, "rev-parse", "HEAD")[:9]
    n = len(clone.patches())
    assert f"MLX_LM=0+g{head}.lookup.{n} " in clone.apply("--source", str(source))
    git(source, "tag", "v0.32.2")
    assert f"MLX_LM=0.32.2+lookup.{n} " in clone.apply("--source", str(source))
    git(source, "branch", "--delete", "--force", "prompt-lookup")
    git(source, "commit", "--quiet", "--allow-empty", "--message", "one more")
    head = git(source, "rev-parse", "HEAD")[:9]
    assert f"MLX_LM=0.32.3.dev1+g{head}.lookup.{n} " in clone.apply("--source", str(source))


def test_source_is_refused_rather_than_changed(clone: Clone, source: Path) -> None:
    assert "not a git clone" in clone.refused("apply.sh", "--source", str(source.parent))
    git(source, "branch", "prompt-lookup")
    assert "rename or delete" in clone.refused("apply.sh", "--source", str(source))
    git(source, "branch", "--delete", "prompt-lookup")
    (source / "LICENSE").write_text("mine")
    assert "uncommitted" in clone.refused("apply.sh", "--source", str(source))
    assert (source / "LICENSE").read_text() == "mine"
    assert git(source, "branch", "--list", "prompt-lookup") == ""
