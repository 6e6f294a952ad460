"""Run scripts/port.sh on trees with known differences from the pinned release."""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import port
import pytest
from checkout import extract

from conformance.repository.clones import Clone, git
from conformance.series.patches import DEFAULT

pytestmark = pytest.mark.repository


@pytest.fixture
def source(applied: Clone, tmp_path: Path) -> Path:
    """A user's clone of the stock release."""
    source = tmp_path / "my source"
    git(tmp_path, "clone", "--quiet", str(applied.checkout), str(source))
    git(source, "reset", "--quiet", "--hard", git(source, "rev-list", "--max-parents=0", "HEAD"))
    return source


def conflict(clone: Clone) -> tuple[str, str]:
    """A line that patch 2 removes from the caches, and another one in its place, with which it conflicts."""
    removed = next(line[1:] for line in clone.patch(2).read_text().splitlines() if re.match(r"-\s+\w", line))
    return removed, f"{removed}  # another release has this line too"


def mend(checkout: Path) -> None:
    """Take the side of the patch in each conflict, and go on as the output says."""
    for file in git(checkout, "diff", "--name-only", "--diff-filter=U").split():
        text = (checkout / file).read_text()
        (checkout / file).write_text(re.sub(r"(?ms)^<{7} .*?^={7}\n(.*?)^>{7} .*?\n", r"\1", text))
    git(checkout, "add", "--all")
    git(checkout, "am", "--continue")


def test_a_clone_that_is_the_release_is_clean(applied: Clone, source: Path) -> None:
    done = applied.run("port.sh", "--source", str(source))
    assert done.returncode == 0, done.stdout + done.stderr
    checkout = applied.root / "vendor" / f"mlx-lm-{git(source, 'rev-parse', 'HEAD')[:12]}"
    assert "All patches apply" in done.stdout
    assert f"None of {len(applied.patches())} patches conflicts." in done.stdout
    assert (checkout / "mlx_lm" / "draft" / "loop.py").exists()
    assert git(source, "status", "--porcelain") == ""
    git(source, "fetch", "--quiet", str(checkout), "prompt-lookup:mine")
    assert len(git(source, "log", "--oneline", "HEAD..mine").splitlines()) == len(applied.patches())
    assert "not a git clone" in applied.refused("port.sh", "--source", str(source.parent))


def test_a_conflict_is_left_to_be_mended(applied: Clone, source: Path) -> None:
    """Patch 1 is in the release, and patch 2 conflicts with it."""
    git(source, "am", "--quiet", str(applied.patch(1)))
    file, (old, new) = source / "mlx_lm" / "models" / "cache.py", conflict(applied)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    git(source, "commit", "--quiet", "--all", "--message", "another release")
    done = applied.run("port.sh", "--source", str(source))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"1 of {len(applied.patches())} patches conflict, in 1 files: mlx_lm/models/cache.py.\n" in done.stdout
    assert "Patch already applied" in done.stdout
    assert "Merge conflict in mlx_lm/models/cache.py" in done.stdout
    before = git(source, "rev-parse", "HEAD")
    checkout = applied.root / "vendor" / f"mlx-lm-{before[:12]}"
    assert f"{checkout.name}' am --continue\n" in done.stdout
    assert git(checkout, "diff", "--name-only", "--diff-filter=U") == "mlx_lm/models/cache.py"
    assert "under way" in applied.run("port.sh", "--source", str(source)).stderr
    mend(checkout)
    # All patches but the one that the release already has.
    assert len(git(checkout, "log", "--format=%s", f"{before}..").splitlines()) == len(applied.patches()) - 1


def test_a_head_that_is_older_than_the_release_is_told(source: Path) -> None:
    assert port.age(source, DEFAULT) == ""
    git(source, "tag", f"v{DEFAULT}")
    git(source, "checkout", "--quiet", "--orphan", "old")
    git(source, "commit", "--quiet", "--message", "old")
    assert f"is older than mlx-lm {DEFAULT}" in port.age(source, DEFAULT)
    assert "mlx-lm 0.0.9 is older" in port.age(None, "0.0.9")


def test_a_version_that_is_not_there(clone: Clone) -> None:
    assert "is not on the package index" in clone.refused("port.sh", "0.0.99")
    assert "the network" in clone.refused("port.sh", "0.0.99", PIP_NO_INDEX="1")
    assert clone.run("port.sh", "../x").returncode == 2
    assert clone.run("port.sh").returncode == 2


def publish(clone: Clone, version: str, old: str, new: str) -> None:
    """An sdist of another release, with one line of the caches changed."""
    name, sdists = f"mlx_lm-{version}", clone.root / "vendor" / "sdist"
    extract(sdists / f"mlx_lm-{DEFAULT}.tar.gz", clone.root / "vendor")
    tree = (clone.root / "vendor" / f"mlx_lm-{DEFAULT}").rename(clone.root / "vendor" / name)
    file = tree / "mlx_lm" / "models" / "cache.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with tarfile.open(sdists / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(tree, name)
    shutil.rmtree(tree)


def test_what_was_mended_for_a_release_becomes_its_patches(applied: Clone) -> None:
    """The lines that are printed pin the release. Export writes the patches that differ for it, and no others."""
    publish(applied, "9.9.9", *conflict(applied))
    done = applied.run("port.sh", "9.9.9")
    assert done.returncode == 3
    mend(applied.root / "vendor" / "mlx-lm-9.9.9")
    toml = applied.root / "vendor" / "releases.toml"
    (lines,) = re.findall(r'^\[releases\."9\.9\.9"\]\nsha256 = "\w+"$', done.stdout, re.MULTILINE)
    toml.write_text(f"{toml.read_text()}\n{lines}\n")
    exported = applied.run("export.sh", "--release", "9.9.9")
    assert exported.returncode == 0, exported.stderr
    assert [path.name for path in (applied.root / "patches" / "9.9.9").glob("*/*")] == [applied.patch(2).name]
    applied.apply("--release", "9.9.9")
    assert "already applied" in applied.apply("--release", "9.9.9")
