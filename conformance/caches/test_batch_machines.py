"""Random programs on every batch cache, compared with lists of rows.

CONFORMANCE_PROFILE=full runs 2000 programs for each cache.
"""

from __future__ import annotations

import pytest

from conformance.caches.batch_machine import BATCHES, BatchMachine
from conformance.caches.machines import run, small_steps

__all__ = ["small_steps"]


@pytest.mark.parametrize("kind", BATCHES)
def test_machine(kind: str) -> None:
    run(BatchMachine, kind)
