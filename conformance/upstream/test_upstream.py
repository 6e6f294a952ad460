"""Upstream's own tests and those of the patches pass on the patched tree, but those that fail on the release too.

They run offline. A tiny model with random weights stands in for the one hub model that they load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.series.patches import PATCHES, commits, own_tests, unpack
from conformance.series.stand_in import with_model
from conformance.series.trees import run_tests

pytestmark = [pytest.mark.patched_source, pytest.mark.series]
# Of upstream, also those that no patch changes. The others of upstream load models of the hub, or train.
UPSTREAM = ("generate", "gated_delta", "models", "prompt_cache", "sample_utils", "server")
OWN = {file for patch in PATCHES for file in own_tests(patch.read_text())}
FILES = sorted(OWN | {f"tests/test_{name}.py" for name in UPSTREAM})
# Several files share a process, which takes longer to start than most of them.
PROCESSES = 6


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole series."""
    return with_model(unpack(commits()[-1], tmp_path_factory.mktemp("tree")))


@pytest.mark.parametrize("part", range(PROCESSES))
def test_the_tests_of_the_patched_tree_pass(part: int, patched: Path) -> None:
    """The tests of earlier patches still pass with the later patches."""
    done = run_tests(patched, "-rfE", *FILES[part::PROCESSES])
    assert done.returncode == 0, done.stdout[-5000:]
