"""Run scripts/port.sh on trees with known differences from the pinned release."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import port
import pytest

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


def conflict(clone: Clone, tree: Path) -> None:
    """Change a line of the caches that patch 2 removes, so that it conflicts."""
    removed = next(line[1:] for line in clone.patch(2).read_text().splitlines() if re.match(r"-\s+\w", line))
    file = tree / "mlx_lm" / "models" / "cache.py"
    assert removed in file.read_text()
    file.write_text(file.read_text().replace(removed, f"{removed}  # another release has this line too", 1))


def mend(checkout: Path) -> None:
    """Take the side of the patch in each conflict, and go on as the output says."""
    for file in git(checkout, "diff", "--name-only", "--diff-filter=U").split():
        text = (checkout / file).read_text()
        (checkout / file).write_text(re.sub(r"(?ms)^<{7} .*?^={7}\n(.*?)^>{7} .*?\n", r"\1", text))
    git(checkout, "add", "--all")
    git(checkout, "am", "--continue")


def test_a_clone_that_is_the_release_is_clean(applied: Clone, source: Path) -> None:
    said = applied.works("port.sh", "--source", str(source))
    assert "All patches apply" in said
    assert f"None of {len(applied.patches())} patches conflict." in said
    checkout = applied.root / "vendor" / f"mlx-lm-{git(source, 'rev-parse', 'HEAD')[:12]}"
    assert git(source, "status", "--porcelain") == ""
    git(source, "fetch", "--quiet", str(checkout), "prompt-lookup:mine")
    assert git(source, "rev-parse", "mine^{tree}") == applied.git("rev-parse", "HEAD^{tree}")


def test_a_conflict_is_left_to_be_mended(applied: Clone, source: Path) -> None:
    """Patch 1 is in the release, and patch 2 conflicts with it."""
    git(source, "am", "--quiet", str(applied.patch(1)))
    conflict(applied, source)
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


def test_a_tree_that_is_older_than_the_release_is_told() -> None:
    assert port.age(DEFAULT) == port.age("0") == ""
    assert "mlx-lm 0.0.9 is older" in port.age("0.0.9")


def test_what_was_mended_for_a_release_becomes_its_patches(applied: Clone) -> None:
    """The lines that are printed pin the release. Export writes the patches that differ for it, and no others."""
    vendor, own = applied.root / "vendor", applied.root / "patches" / "9.9.9"
    shutil.unpack_archive(vendor / "sdist" / f"mlx_lm-{DEFAULT}.tar.gz", vendor / "made")
    tree = (vendor / "made" / f"mlx_lm-{DEFAULT}").rename(vendor / "made" / "mlx_lm-9.9.9")
    conflict(applied, tree)
    shutil.make_archive(str(vendor / "sdist" / tree.name), "gztar", tree.parent, tree.name)
    done = applied.run("port.sh", "9.9.9")
    assert done.returncode == 3, done.stderr
    checkout = vendor / "mlx-lm-9.9.9"
    mend(checkout)
    toml = vendor / "releases.toml"
    (lines,) = re.findall(r'^\[releases\."9\.9\.9"\]\nsha256 = "\w+"$', done.stdout, re.MULTILINE)
    toml.write_text(f"{toml.read_text()}\n{lines}\n")
    applied.works("export.sh", "--release", "9.9.9")
    assert [path.name for path in own.glob("*/*")] == [applied.patch(2).name]
    assert "applied" in applied.apply("--release", "9.9.9")
