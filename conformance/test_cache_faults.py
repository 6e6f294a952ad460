"""The state machines find a planted fault; and the shortest programs that show each true one."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    can_rewind_prompt_cache,
    restore_prompt_cache,
    rewind_prompt_cache,
    snapshot_prompt_cache,
)
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance import machines
from conformance.faults import nothing, planted
from conformance.feeding import WIDTH, feed
from conformance.machines import PROFILE, CacheMachine, run, small_steps
from conformance.plants import rewind_one_row_late
from conformance.reference import Block
from conformance.test_batch_machines import BATCHES, BatchMachine

__all__ = ["small_steps"]

# A fault is found in far fewer programs, and need not be made short.
SEARCH = settings(parent=PROFILE, max_examples=4000, derandomize=True, phases=[Phase.generate])


def restore_one_further(cache: KVCache, snapshot: Any) -> None:
    cache.offset = cache._restore_rows(snapshot) + 1


def restore_without_the_index(cache: RotatingKVCache, snapshot: Any) -> None:
    cache.keys, cache.values, cache.offset, cache.keep, cache.max_size, _ = [
        x[...] if isinstance(x, mx.array) else x for x in snapshot
    ]


def restore_the_same_arrays(cache: ArraysCache, snapshot: Any) -> None:
    state, cache.left_padding, cache.lengths = snapshot
    cache.cache, cache._recorded = list(state), None


def restore_without_the_padding(cache: BatchKVCache, snapshot: Any) -> None:
    rows, (offset, _, right_padding) = snapshot
    cache._idx = cache._restore_rows(rows)
    cache.offset, cache._right_padding = offset[...], right_padding


restore_batch_rotating = BatchRotatingKVCache.restore


def restore_the_same_padding(cache: BatchRotatingKVCache, snapshot: Any) -> None:
    """What is fed next is subtracted in the snapshot too."""
    restore_batch_rotating(cache, snapshot)
    cache.left_padding = snapshot[0][2]


def rewind_and_keep_the_rows(cache: BatchRotatingKVCache, n: int) -> None:
    cache._idx -= n
    cache._offset -= n
    cache.offset = cache.offset - n


def restore_the_rows_only(cache: ChunkedKVCache, snapshot: Any) -> None:
    cache.offset = cache.start_position + cache._restore_rows(snapshot[0])


def restore_without_the_groups(cache: LayerCache, snapshot: dict[str, Any]) -> None:
    vars(cache).update({name: x for name, x in snapshot.items() if not name.startswith("pending")})


def rewind_the_first(cache: CacheList, n: int) -> None:
    cache.caches[0].rewind(n)


def trim_one_short(cache: QuantizedKVCache, n: int) -> int:
    cache.offset -= n - 1
    return n


def forget_what_was_evicted(cache: Any, n: int) -> bool:
    return bool(0 <= n <= cache._idx)


def nothing_is_lost(_: Any, block: Block) -> list[list[int]]:
    return [[] for _ in block]


@planted(
    ("kv", KVCache, "restore", restore_one_further),
    ("kv", KVCache, "_release_rows", nothing),
    ("quantized", QuantizedKVCache, "_release_rows", nothing),
    ("quantized", QuantizedKVCache, "trim", trim_one_short),
    ("rotating", RotatingKVCache, "restore", restore_without_the_index),
    ("rotating keep", RotatingKVCache, "can_rewind", forget_what_was_evicted),
    ("chunked", ChunkedKVCache, "restore", restore_the_rows_only),
    ("batch arrays", ArraysCache, "restore", restore_the_same_arrays),
    ("arrays", ArraysCache, "rewind", rewind_one_row_late),
    ("mixed", ArraysCache, "set_recording", nothing),
    ("batch", BatchKVCache, "restore", restore_without_the_padding),
    ("batch", BatchKVCache, "_release_rows", nothing),
    ("batch rotating", BatchRotatingKVCache, "restore", restore_the_same_padding),
    ("batch rotating", BatchRotatingKVCache, "rewind", rewind_and_keep_the_rows),
    ("batch rotating", BatchRotatingKVCache, "can_rewind", forget_what_was_evicted),
    # The row that upstream's mask hides next to padding is missed where the model does not allow for it.
    ("batch rotating", machines, "lost_to_the_mask", nothing_is_lost),
    ("list of kv and rotating", CacheList, "rewind", rewind_the_first),
    ("layer", LayerCache, "restore", restore_without_the_groups),
)
def test_a_planted_fault_is_found(where: str) -> None:
    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeError, pytest.fail.Exception)):
        run(BatchMachine if where in BATCHES else CacheMachine, where, SEARCH)


def fed(cache: Any, *lengths: int, batch: int = 1) -> Any:
    """Blocks of the tokens 1, 2, 3 and so on."""
    token = 1
    for length in lengths:
        feed(cache, [list(range(token, token + length))] * batch)
        token += length
    return cache


def test_a_chunk_without_its_front() -> None:
    """The next token of a rewound cache lies in a chunk whose first row was trimmed."""
    cache = fed(ChunkedKVCache(4), 5, 1)
    assert cache.start_position == 1
    if can_rewind_prompt_cache([cache], 3):
        rewind_prompt_cache([cache], 3)
        assert feed(cache, [[9]])[1] == [[[1, 2, 3, 9]]]


def rewound(cache: BatchRotatingKVCache, n: int) -> list[list[int]]:
    """What the next token of each sequence sees, or nothing if the cache cannot drop ``n``."""
    if not can_rewind_prompt_cache([cache], n):
        return []
    rewind_prompt_cache([cache], n)
    return [seen[0] for seen in feed(cache, [[99]] * len(cache.offset.tolist()))[1]]


def test_a_batch_of_a_ring_and_a_block() -> None:
    """The second sequence evicted the rows that it would need."""
    cache = fed(BatchRotatingKVCache(5, [0]), 8)
    other = fed(BatchRotatingKVCache(5, [0]), *[1] * 8)
    cache.extend(other)
    right = [2, 3, 4, 5, 99]
    assert rewound(cache, 3) in ([], [right, right])


def test_a_batch_of_long_and_short_prompts() -> None:
    """The padding of the short prompt is no row of its sequence."""
    cache = fed(BatchRotatingKVCache(5, [0, 0]), 8, 1, batch=2)
    cache.prepare(lengths=[1, 6], right_padding=[5, 0])
    feed(cache, [[10, 0, 0, 0, 0, 0], [10, 11, 12, 13, 14, 15]])
    cache.finalize()
    assert rewound(cache, 3) in ([], [[4, 5, 6, 7, 99], [9, 10, 11, 12, 99]])


def test_a_recorded_block_of_padded_prompts() -> None:
    """The last columns of a short prompt are padding, not its last tokens."""
    cache = ArraysCache(2)
    cache.set_recording(True)
    cache.prepare(lengths=[1, 3], right_padding=[2, 0])
    feed(cache, [[1, 0, 0], [1, 2, 3]])
    cache.finalize()
    if can_rewind_prompt_cache([cache], 1):
        rewind_prompt_cache([cache], 1)
        assert cache[0].tolist() == [[0, 0], [1, 2]]


def test_a_snapshot_of_a_batch_without_rows() -> None:
    cache = [fed(BatchKVCache([0, 0]), 3, batch=2)]
    rewind_prompt_cache(cache, 3)
    snapshot = snapshot_prompt_cache(cache)
    cache[0].filter(mx.array([1]))
    restore_prompt_cache(cache, snapshot)
    assert feed(cache[0], [[1], [2]])[1] == [[[1]], [[2]]]


def test_a_quantized_entry_is_put_back() -> None:
    cache: list[Any] = [fed(KVCache(), 3)]
    original, snapshot = cache[0], snapshot_prompt_cache(cache)
    for _ in range(2):
        cache[0] = cache[0].to_quantized(group_size=WIDTH, bits=8)
        fed(cache[0], 2)
        restore_prompt_cache(cache, snapshot)
        assert cache[0] is original
        assert cache[0].offset == 3
