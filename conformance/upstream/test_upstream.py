"""Upstream's own tests and those of the patches pass on the patched tree, and no more fail than on the release.

They run offline. A tiny model with random weights stands in for the one hub model that they load.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from conformance.series.patches import PATCHES, commits, own_tests, unpack
from conformance.series.stand_in import with_model
from conformance.series.trees import run_tests
from conformance.series.upstream_tests import AS_ON_STOCK, FILES, FLAT, KNOWN, outcome

pytestmark = pytest.mark.patched_source
# Files that upstream has too are tested below.
OWN = sorted({file for patch in PATCHES for file in own_tests(patch.read_text()) if Path(file).stem not in FILES})
# Several files share a process, which takes longer to start than most of them.
PROCESSES = 6


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole series."""
    return with_model(unpack(commits()[-1], tmp_path_factory.mktemp("tree")))


def test_the_patched_tree_fails_nothing_more(patched: Path, tmp_path: Path) -> None:
    """Tests that fail with the series also fail on the release. Only these run on the release."""
    passed, failed = outcome(patched, [f"{name}.py" for name in FILES])
    assert passed > 100
    if not mx.metal.is_available():
        assert failed <= set(KNOWN), f"these fail: {', '.join(failed - set(KNOWN))}"
    # A sampled text may differ between runs.
    if steady := failed - {FLAT}:
        _, on_the_release = outcome(with_model(unpack(commits()[0], tmp_path)), sorted(steady))
        assert steady <= on_the_release, f"these pass on the release: {', '.join(steady - on_the_release)}"


@pytest.mark.parametrize("part", range(PROCESSES))
def test_the_tests_of_the_patches_pass(part: int, patched: Path) -> None:
    """The tests of earlier patches still pass with the later patches."""
    done = run_tests(patched, "-rfE", *OWN[part::PROCESSES], *AS_ON_STOCK)
    assert done.returncode == 0, done.said[-5000:]
