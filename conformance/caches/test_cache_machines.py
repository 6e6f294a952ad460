"""Random programs on every prompt cache of one sequence, compared with its rows.

CONFORMANCE_PROFILE=full runs 2000 programs for each cache.
"""

from __future__ import annotations

import pytest

from conformance.series.surface import CACHES
from conformance.testing.caches.batch_machine import BATCHES
from conformance.testing.caches.layer_io import leaves
from conformance.testing.caches.machines import KINDS, CacheMachine, run, small_steps

__all__ = ["small_steps"]


@pytest.mark.parametrize("kind", KINDS)
def test_machine(kind: str) -> None:
    run(CacheMachine, kind)


def test_every_cache_class_that_is_known_is_run() -> None:
    """A class with a sentence instead of a kind is not a cache of a layer."""
    kinds = {cache: kind for cache, kind in CACHES.items() if not kind.endswith(".")}
    for cache, kind in kinds.items():
        held = BATCHES[kind].padded(5, [0]) if kind in BATCHES else KINDS[kind](5).caches[0]
        names = {type(one).__name__ for one in [held, *leaves([held])]}
        assert cache.rpartition(":")[2] in names, (
            f'CACHES of conformance/series/surface.py: "{kind}" does not hold {cache}'
        )
