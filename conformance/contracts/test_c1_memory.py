"""A snapshot takes no memory that grows with the context, nor do many of them."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.caches.kinds import KINDS, NAMES

# Lists of caches are made of these.
CACHES = {name: kind.code for name, kind in KINDS.items() if len(kind.classes) == 1 and kind.code.count("(") == 1}
CACHES |= {"LayerCache": "[LayerCache({size})]"}


def filled(name: str, tokens: int) -> Any:
    """A cache that holds ``tokens`` tokens."""
    (cache,) = eval(CACHES[name].format(size=512, padding=[0]), NAMES | {"LayerCache": LayerCache})
    rows = mx.zeros((1, 1, tokens, 64), dtype=mx.float16)
    if isinstance(cache, ArraysCache):
        cache[0], cache[1] = rows[:, 0, :3], rows[:, 0, :64]
    elif hasattr(cache, "update_window"):
        cache.update_window(rows[:, 0])
    else:
        cache.update_and_fetch(rows, rows)
    mx.eval(cache.state)
    return cache


@pytest.mark.parametrize("name", CACHES)
def test_a_snapshot_allocates_nothing(name: str) -> None:
    cache = filled(name, 4096)
    # Free the memory of other tests first, so that it does not change the measurement.
    gc.collect()
    before = mx.get_active_memory()
    snapshots = [cache.snap() for _ in range(100)]
    cache.restore(snapshots[0])
    more = mx.get_active_memory() - before
    assert more == 0, f"a hundred snapshots of a {name} take {more} bytes"
