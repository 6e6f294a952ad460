"""The cost of a snapshot, and of a block whose rows end at different places: tox run -e micro

The suite runs each test once, without timing. No test asserts a time. The memory of a snapshot is asserted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from mlx_lm.models.deepseek_v41 import LayerCache

GROWING: dict[str, Callable[[], Any]] = {
    "KVCache": KVCache,
    "QuantizedKVCache": QuantizedKVCache,
    "ConcatenateKVCache": ConcatenateKVCache,
    "BatchKVCache": lambda: BatchKVCache([0]),
}
BOUNDED: dict[str, Callable[[], Any]] = {
    "ChunkedKVCache": lambda: ChunkedKVCache(512),
    "RotatingKVCache": lambda: RotatingKVCache(512),
    "BatchRotatingKVCache": lambda: BatchRotatingKVCache(512, [0]),
    "ArraysCache": lambda: ArraysCache(2),
    "LayerCache": lambda: LayerCache(512),
}
CACHES = GROWING | BOUNDED


def filled(name: str, tokens: int) -> Any:
    """A cache that holds ``tokens`` tokens."""
    cache = CACHES[name]()
    rows = mx.zeros((1, 1, tokens, 64), dtype=mx.float16)
    if isinstance(cache, ArraysCache):
        cache[0], cache[1] = rows[:, 0, :3], rows[:, 0, :64]
    elif isinstance(cache, LayerCache):
        cache.update_window(rows[:, 0])
    else:
        cache.update_and_fetch(rows, rows)
    mx.eval(cache.state)
    return cache


@pytest.mark.parametrize("tokens", [512, 4096, 32768])
@pytest.mark.parametrize("name", CACHES)
def test_round_trip(benchmark: Callable[..., None], name: str, tokens: int) -> None:
    cache = filled(name, tokens)
    benchmark(lambda: cache.restore(cache.snap()))


@pytest.mark.parametrize("name", CACHES)
def test_a_snapshot_allocates_nothing(name: str) -> None:
    cache = filled(name, 4096)
    # Free the memory of other tests first, so that it does not change the measurement.
    gc.collect()
    before = mx.get_active_memory()
    snapshots = [cache.snap() for _ in range(100)]
    cache.restore(snapshots[0])
    assert mx.get_active_memory() == before


@pytest.mark.parametrize("name", ["KVCache", "QuantizedKVCache", "BatchKVCache"])
def test_a_write_next_to_a_snapshot_copies_no_buffer(name: str) -> None:
    """If a snapshot kept the arrays alive, the next write would double the memory of the cache."""
    cache = filled(name, 4000)
    gc.collect()
    snapshot = cache.snap()
    before, row = mx.get_active_memory(), mx.zeros((1, 1, 1, 64), dtype=mx.float16)
    mx.reset_peak_memory()
    cache.update_and_fetch(row, row)
    mx.eval(cache.state)
    assert mx.get_peak_memory() - before < cache.nbytes / 4
    cache.restore(snapshot)


WAYS: dict[str, tuple[list[int], Callable[[Any], None]]] = {
    "all rows alike": ([4, 4, 4, 4], lambda cache: None),
    "each row where it ends": ([4, 1, 2, 3], lambda cache: None),
    "moved to the same column": ([4, 1, 2, 3], lambda cache: cache._align()),
}


@pytest.mark.parametrize("tokens", [2048, 32768])
@pytest.mark.parametrize("way", WAYS)
def test_a_block_and_a_trim_by_row(benchmark: Callable[..., None], way: str, tokens: int) -> None:
    dropped, move = WAYS[way]
    cache, rows = BatchKVCache([0] * 4), mx.zeros((4, 2, 4, 128), dtype=mx.float16)
    whole = mx.zeros((4, 2, tokens, 128), dtype=mx.float16)
    cache.update_and_fetch(whole, whole)

    def step() -> None:
        mx.eval(cache.update_and_fetch(rows, rows))
        cache.trim(dropped)
        move(cache)
        mx.eval(cache.keys, cache.values)

    benchmark(step)


def drafted_step(cache: BatchKVCache) -> None:
    """A step of a list of caches that is taken back: each row rejects one of two tokens. Then all start over."""
    offset, end = cache.offset, cache._idx
    cache.snap()
    cache.offset, cache._idx = offset + 2, end + 2
    cache.trim([1] * 4)
    cache.offset, cache._idx = offset, end


@pytest.mark.parametrize("steps", [0, 40_000])
def test_a_drafted_step_of_a_row_that_lags(benchmark: Callable[..., None], steps: int) -> None:
    """The first row ends more than a block before the others."""
    cache, rows = BatchKVCache([0] * 4), mx.zeros((4, 1, 20, 2))
    cache.update_and_fetch(rows, rows)
    cache.trim([10, 0, 0, 0])
    for _ in range(steps if getattr(benchmark, "enabled", False) else min(steps, 40)):
        drafted_step(cache)
    benchmark(lambda: drafted_step(cache))
    # It holds no mark but the last one.
    assert cache._mark is not None
    assert cache._mark.next is None
