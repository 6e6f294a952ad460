"""Run scripts/port.sh on trees with known differences from the pinned release."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from add_release import FLAVOURS, READ, edited, expect
from checkout import extract
from judge import of_patches
from pin import patch_files
from port import HEADER, Row

from conformance import ROOT
from conformance.expectations.plugin import read
from conformance.series.patches import DEFAULT, RELEASES
from conformance.series.surface import changes
from conformance.testing.clones import Clone, clone, git

__all__ = ["clone"]

pytestmark = pytest.mark.repository


def test_the_judge_reads_the_table_of_a_port() -> None:
    results = ["clean", "merged", "conflict", "already upstream"]
    said = "\n".join(str(Row(patch, result)) for patch, result in zip(patch_files(4), results, strict=True))
    assert of_patches(f"{HEADER}\n{said}\n") == results


@pytest.fixture
def source(clone: Clone, tmp_path: Path) -> Path:
    """A user's clone of the stock release."""
    shutil.copytree(ROOT / "conformance", clone.root / "conformance", ignore=shutil.ignore_patterns("__pycache__"))
    clone.apply("--until", "0")
    source = tmp_path / "source"
    git(tmp_path, "clone", "--quiet", str(clone.checkout), str(source))
    return source


def edit(source: Path, file: str, old: str, new: str) -> None:
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new, 1))
    git(source, "commit", "--quiet", "--all", "--message", "another release")


def port(clone: Clone, source: Path) -> tuple[int, str, dict[int, str], Path]:
    """The exit status, the output, the table and the checkout."""
    done = clone.run("port.sh", "--source", str(source))
    words = re.findall(r"^\w\S+ +(clean|merged|conflict|already upstream) ", done.stdout, re.MULTILINE)
    table = dict(enumerate(words, 1))
    assert len(table) == len(clone.patches()), done.stdout + done.stderr
    return (
        done.returncode,
        done.stdout,
        table,
        clone.root / "vendor" / f"mlx-lm-{git(source, 'rev-parse', 'HEAD')[:12]}",
    )


def test_a_release_that_is_the_same_is_clean(clone: Clone, source: Path) -> None:
    code, said, table, checkout = port(clone, source)
    assert (code, set(table.values())) == (0, {"clean"}), said
    assert "All patches apply" in said
    assert (checkout / "mlx_lm" / "draft" / "loop.py").exists()
    assert git(source, "status", "--porcelain") == ""


def test_each_word_of_the_table(clone: Clone, source: Path) -> None:
    """Patch 1 is in the release, patch 2 conflicts with it, patch 4 has to be merged."""
    git(source, "am", "--quiet", str(clone.patch(1)))
    patch = clone.patch(2).read_text()
    removed = next(line[1:] for line in patch.splitlines() if re.match(r"-\s+\w", line))
    edit(source, "mlx_lm/models/cache.py", removed, f"{removed}  # another release has this line too")
    (source / "mlx_lm" / "models" / "paged.py").write_text("class PagedCache:\n    pass\n")
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", "a cache")
    code, said, table, checkout = port(clone, source)
    assert code == 3, said
    assert table[1] == "already upstream"
    assert table[2] == "conflict"
    assert "mlx_lm/models/cache.py (1 hunk)" in said
    assert "conflict" not in [table[name] for name in table if name > 2]
    assert "mlx_lm/models/paged.py has the cache class PagedCache" in said
    assert "another release has this line too" in (checkout / "mlx_lm" / "models" / "cache.py").read_text()
    goes_on(clone, source, checkout, said)


def goes_on(clone: Clone, source: Path, checkout: Path, said: str) -> None:
    """The conflict markers are where the output says, a second run keeps them, and the printed command continues."""
    cache = checkout / "mlx_lm" / "models" / "cache.py"
    assert git(checkout, "diff", "--name-only", "--diff-filter=U") == "mlx_lm/models/cache.py"
    assert "with conflict markers in mlx_lm/models/cache.py" in said
    assert "under way" in clone.run("port.sh", "--source", str(source)).stderr
    settled = re.sub(r"^<{7}.*?^={7}\n(.*?)^>{7}.*?\n", r"\1", cache.read_text(), flags=re.MULTILINE | re.DOTALL)
    cache.write_text(settled)
    assert re.search(rf"git -C .*{checkout.name}'? add --all && git -C .*{checkout.name}'? am --continue\n", said)
    git(checkout, "add", "--all")
    git(checkout, "am", "--continue")
    # All patches but the one that the release already has.
    done = git(checkout, "log", "--format=%s", f"{git(source, 'rev-parse', 'HEAD')}..")
    assert len(done.splitlines()) == len(clone.patches()) - 1


def test_a_version_that_is_not_there(clone: Clone) -> None:
    assert "is not on the package index" in clone.refused("port.sh", "0.0.99")
    assert "the network" in clone.refused("port.sh", "0.0.99", PIP_NO_INDEX="1")
    assert clone.run("port.sh", "../x").returncode == 2
    assert clone.run("port.sh").returncode == 2


def test_another_release_is_named_everywhere() -> None:
    last = next(release for release in RELEASES if release != DEFAULT)
    tox = edited((ROOT / "tox.ini").read_text(), "9.9.9", last)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(tox)
    (suite,) = [name for name in parser.sections() if name.startswith("testenv:{patched,stock}")]
    (others,) = [name for name in parser.sections() if name.startswith("testenv:{selftest,series")]
    assert ",-9.9.9}" in suite
    assert ",series-9.9.9}" in others
    assert "9.9.9: RELEASE = --release 9.9.9" in parser["testenv"]["set_env"]
    assert "patched-9.9.9, stock-9.9.9, {patched,stock}-9.9.9-lowest" in parser["tox"]["labels"]


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


def pinned(clone: Clone, version: str) -> subprocess.CompletedProcess[str]:
    code = f"import add_release; add_release.add({version!r})"
    env = os.environ | {"PYTHONPATH": str(clone.root / "scripts")}
    return subprocess.run([sys.executable, "-c", code], cwd=clone.root, env=env, capture_output=True, text=True)


@pytest.fixture
def whole(clone: Clone) -> Clone:
    """With what a release is named in, and a tox that finds one failure."""
    shutil.copytree(ROOT / "conformance", clone.root / "conformance", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tox.ini", clone.root)
    (clone.root / ".tox" / "scorecards").mkdir(parents=True)
    card = json.dumps({"rows": {"C4 parity": {"test_b.py::new": {"outcome": "failed"}}}})
    lines = [f"echo '{card}' > '{clone.root}/.tox/scorecards/{flavour}-9.9.9.json'" for flavour in FLAVOURS]
    (clone.root / "scripts" / "tox.sh").write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    return clone


def test_a_release_that_the_series_does_not_fit_is_not_pinned(whole: Clone) -> None:
    """It is said on one screen, and nothing is half written, whether a port of it is under way or not."""
    patch = whole.patch(2).read_text()
    removed = next(line[1:] for line in patch.splitlines() if re.match(r"-\s+\w", line))
    publish(whole, "9.9.9", removed, f"{removed}  # another release has this line too")
    whole.apply()
    name = list(whole.patches())[1]
    before = whole.state()
    for _ in range(2):
        done = pinned(whole, "9.9.9")
        assert done.returncode == 1
        assert f"9.9.9 is not pinned, and nothing was changed: {name} does not apply" in done.stderr
        assert re.search(r"does not apply to mlx-lm 9\.9\.9\. It was made for mlx-lm [\d.]+\.\n", done.stderr)
        assert "scripts/port.sh 9.9.9 leaves the first conflict in vendor/mlx-lm-9.9.9" in done.stderr
        assert whole.state() == before
    assert whole.run("port.sh", "9.9.9").returncode == 3
    before = whole.state()
    assert "is in the middle of a port" in pinned(whole, "9.9.9").stderr
    assert whole.state() == before


def test_a_release_whose_patches_were_mended_is_pinned(whole: Clone) -> None:
    """What was settled in its checkout becomes the patches of this release."""
    patch = whole.patch(2).read_text()
    removed = next(line[1:] for line in patch.splitlines() if re.match(r"-\s+\w", line))
    publish(whole, "9.9.9", removed, f"{removed}  # another release has this line too")
    assert whole.run("port.sh", "9.9.9").returncode == 3
    checkout = whole.root / "vendor" / "mlx-lm-9.9.9"
    for file in git(checkout, "diff", "--name-only", "--diff-filter=U").split():
        text = (checkout / file).read_text()
        (checkout / file).write_text(re.sub(r"(?ms)^<{7} .*?^={7}\n(.*?)^>{7} .*?\n", r"\1", text))
    git(checkout, "add", "--all")
    git(checkout, "am", "--continue")
    done = pinned(whole, "9.9.9")
    assert done.returncode == 0, done.stderr
    assert "9.9.9-stock.txt: 1 new lines to read" in done.stdout
    assert [path.name for path in (whole.root / "patches" / "9.9.9").glob("*/*")] == [whole.patch(2).name]
    assert '[releases."9.9.9"]' in (whole.root / "vendor" / "releases.toml").read_text()
    assert "already applied" in whole.apply("--release", "9.9.9")


def test_what_a_new_release_fails_is_written_down_to_be_read(tmp_path: Path) -> None:
    expectations, scorecard = tmp_path / "9.9.9-stock.txt", tmp_path / "stock-9.9.9.json"
    expectations.write_text("# It has no drafts.\ntest_a.py::import\ntest_a.py::gone\ntest_b.py::mended\n")
    tests = {
        "test_b.py::new": {"outcome": "failed", "reason": "assert 1 == 2"},
        "test_b.py::mended": {"outcome": "failed", "reason": "[XPASS(strict)] It has no drafts."},
        "expectations/9.9.9-stock.txt:3": {"outcome": "failed", "reason": "file:3: no test is test_a.py::gone"},
        "test_b.py::fine": {"outcome": "passed"},
    }
    scorecard.write_text(json.dumps({"rows": {"C4 parity": tests}}))
    assert expect(scorecard, expectations, "9.9.9") == 1
    (old, new) = read(expectations)
    assert (old.id, old.reason) == ("test_a.py::import", "It has no drafts.")
    assert (new.id, new.reason) == ("test_b.py::new", READ.format(version="9.9.9") + " assert 1 == 2")


def test_what_changed_since_the_last_release(tmp_path: Path) -> None:
    for name, code in (
        ("old", "def a(x):\n    return 1\n\ndef b(): ...\n"),
        ("new", "def a(x):\n    return 2\n\ndef c(): ...\n"),
    ):
        (tmp_path / name / "mlx_lm" / "models").mkdir(parents=True)
        (tmp_path / name / "mlx_lm" / "generate.py").write_text(code)
    said = changes(tmp_path / "old", tmp_path / "new")
    assert "mlx_lm/generate.py adds c; drops b; changes a." in said
    assert "mlx_lm/models/cache.py is as it was." in said
