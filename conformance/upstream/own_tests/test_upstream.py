"""Upstream's own tests and those of the patches pass on the patched tree.

They run offline. A tiny model with random weights stands in for the one hub model that they load.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from conformance.series.patches import PATCHES, commits, own_tests, unpack
from conformance.series.stand_in import write
from conformance.series.trees import run_tests
from conformance.series.upstream_tests import AS_ON_STOCK, FILES, FLAT, KNOWN, outcome

pytestmark = pytest.mark.patched_source

# Files that upstream has too are tested below.
OWN = sorted({file for patch in PATCHES for file in own_tests(patch.read_text()) if Path(file).stem not in FILES})


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The release and the whole series."""
    history = commits()
    stock, patched = (unpack(commit, tmp_path_factory.mktemp("tree")) for commit in (history[0], history[-1]))
    for tree in (stock, patched):
        write(tree)
    return stock, patched


def test_the_patched_tree_fails_nothing_more(trees: tuple[Path, Path]) -> None:
    """Tests that fail with the series also fail on the release. Only these run on the release."""
    stock, patched = trees
    passed, failed = outcome(patched, [f"{name}.py" for name in FILES])
    assert passed > 100
    if not mx.metal.is_available():
        assert failed <= set(KNOWN)
    # A sampled text may differ between runs.
    steady = sorted(test for test in failed if KNOWN.get(test) != FLAT)
    assert not steady or set(steady) <= outcome(stock, steady)[1]


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = unpack(commits()[-1], tmp_path_factory.mktemp("own"))
    write(tree)
    return tree


@pytest.mark.parametrize("file", OWN)
def test_the_tests_of_the_patches_pass(file: str, patched: Path) -> None:
    """The tests of earlier patches still pass with the later patches."""
    done = run_tests(patched, file, *AS_ON_STOCK)
    assert done.returncode == 0, done.said[-3000:]


# One-line faults that no other test of the suite finds.
LIMIT = "fits = self._idx - self.max_size"
FAULTS = {
    "a full window trimmed at its limit": ("models/cache.py", LIMIT, f"{LIMIT} + 1", "tests/test_cache_trim.py"),
}


@pytest.mark.planted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, tmp_path: Path) -> None:
    file, right, wrong, tests = FAULTS[fault]
    tree = unpack(commits()[-1], tmp_path)
    text = (tree / "mlx_lm" / file).read_text()
    assert text.count(right) == 1
    (tree / "mlx_lm" / file).write_text(text.replace(right, wrong))
    write(tree)
    assert run_tests(tree, tests).returncode == 1
