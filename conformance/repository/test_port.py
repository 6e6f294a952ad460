"""Run scripts/port.sh on trees with known differences from the pinned release."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

import port
import pytest

from conformance.repository.clones import Clone, git
from conformance.series.patches import DEFAULT

pytestmark = pytest.mark.repository
FILE = "mlx_lm/models/cache.py"


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
        with suppress(AssertionError):
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


def test_a_tree_that_is_older_than_the_release_is_told() -> None:
    assert port.age(DEFAULT) == port.age("0") == ""
    assert "mlx-lm 0.0.9 is older" in port.age("0.0.9")
