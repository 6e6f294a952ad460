"""The state machines find planted faults. Also, a short program for each real fault that they found."""

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
    can_trim_prompt_cache,
    restore_prompt_cache,
    snapshot_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.testing.caches.batch_machine import BATCHES, BatchMachine
from conformance.testing.caches.layer_io import WIDTH, feed, leaves
from conformance.testing.caches.machines import PROFILE, CacheMachine, run, small_steps
from conformance.testing.faults.models import trim_one_row_late
from conformance.testing.faults.planted import nothing, planted
from conformance.testing.models.families import mutant

__all__ = ["small_steps"]

# Far fewer programs find a fault, and the failing one need not be shrunk.
SEARCH = settings(parent=PROFILE, max_examples=4000, derandomize=True, phases=[Phase.generate])


kv_trim = KVCache.trim
arrays_update = ArraysCache.update
kv_restore, kv_update = KVCache.restore, KVCache.update_and_fetch
chunked_restore, arrays_restore, list_restore = ChunkedKVCache.restore, ArraysCache.restore, CacheList.restore
batch_restore, batch_rotating_restore = BatchKVCache.restore, BatchRotatingKVCache.restore
batch_drop, batch_rotating_drop, arrays_drop = BatchKVCache._drop, BatchRotatingKVCache._drop, ArraysCache._drop


def restore_one_further(cache: KVCache, snapshot: Any) -> None:
    kv_restore(cache, snapshot)
    cache.offset += 1


class EverySnapshot(dict[Any, int]):
    def __contains__(self, snapshot: object) -> bool:
        return True


def forget_what_was_cut(cache: KVCache, keys: mx.array, values: mx.array) -> Any:
    """A cache forgets that rows were cut once they are overwritten."""
    cache._snapshots = EverySnapshot()
    return kv_update(cache, keys, values)


def restore_without_the_index(cache: RotatingKVCache, snapshot: Any) -> None:
    cache.keys, cache.values, cache.offset, cache.keep, cache.max_size, _ = [
        x[...] if isinstance(x, mx.array) else x for x in snapshot[0]
    ]


def restore_without_the_front(cache: ChunkedKVCache, snapshot: Any) -> None:
    front = cache.start_position
    chunked_restore(cache, snapshot)
    cache.start_position = front


def restore_arrays_without_the_padding(cache: ArraysCache, snapshot: Any) -> None:
    padding = cache.left_padding
    arrays_restore(cache, snapshot)
    cache.left_padding = padding


def restore_without_the_offsets(cache: BatchKVCache, snapshot: Any) -> None:
    offset = cache.offset
    batch_restore(cache, snapshot)
    cache.offset = offset


def restore_the_same_padding(cache: BatchRotatingKVCache, snapshot: Any) -> None:
    """The snapshot shares its padding with the cache, so feeding changes it."""
    batch_rotating_restore(cache, snapshot)
    held = [x for x in snapshot[0] if isinstance(x, mx.array)]
    cache.left_padding = next(x for x in held if x.ndim == 1 and mx.array_equal(x, cache.left_padding).item())


def drop_and_keep_the_rows(cache: BatchRotatingKVCache, n: Any) -> None:
    keys, values = cache.keys, cache.values
    batch_rotating_drop(cache, n)
    if isinstance(n, int):
        cache.keys, cache.values = keys, values


def forget_the_front(cache: ChunkedKVCache, n: Any) -> bool:
    return isinstance(n, int) and 0 <= n <= cache.offset - cache.start_position


def restore_without_the_groups(cache: LayerCache, snapshot: dict[str, Any]) -> None:
    vars(cache).update({name: x for name, x in snapshot.items() if not name.startswith("pending")})


def trim_the_first(cache: CacheList, n: Any) -> Any:
    return cache.caches[0].trim(n)


def end_in_one_column(cache: BatchKVCache) -> tuple[Any, ...]:
    """Reading the state moves the rows of a batch."""
    cache._align()
    return cache.keys, cache.values, cache.offset, cache.left_padding, cache._idx


def columns_for_rows(cache: BatchKVCache) -> list[int]:
    """A row that ends before the others does not count where it ends."""
    return [cache._idx] * len(cache.offset.tolist())


def always_keep(cache: ArraysCache, i: int, *block: Any) -> None:
    """Every pass keeps what it takes to trim it, also where no draft is in it."""
    cache._armed.add(i)
    arrays_update(cache, i, *block)


def never_keep(cache: ArraysCache, i: int, state: mx.array, *_: Any) -> None:
    cache[i] = state


def refuse_to_clamp(cache: KVCache, n: int) -> int:
    if not 0 <= n <= cache.offset:
        raise ValueError(f"{type(cache).__name__} cannot be trimmed by {n}.")
    dropped: int = kv_trim(cache, n)
    return dropped


def ask_for_an_int(cache: KVCache, n: Any) -> bool:
    return isinstance(n, int) and 0 <= n <= cache.offset


def ask_the_first(cache: CacheList, n: Any) -> bool:
    return bool(cache.caches[0].can_trim(n))


def restore_the_first(cache: CacheList, snapshot: Any) -> None:
    """Only the first cache of a list is restored."""
    last = cache.caches[-1]
    state = dict(vars(last))
    list_restore(cache, snapshot)
    vars(last).update(state)


def drop_one_short(cache: QuantizedKVCache, n: int) -> None:
    cache.offset -= max(n - 1, 0)


def forget_what_was_evicted(cache: Any, n: Any) -> bool:
    return isinstance(n, int) and 0 <= n <= cache._idx


# These drop the same number of tokens from each row.


def drop_the_least(cache: BatchKVCache, n: Any) -> None:
    batch_drop(cache, n if isinstance(n, int) else min(n))


def drop_the_least_of_a_window(cache: BatchRotatingKVCache, n: Any) -> None:
    batch_rotating_drop(cache, n if isinstance(n, int) else min(n))


def drop_the_most_of_a_state(cache: ArraysCache, n: Any) -> None:
    arrays_drop(cache, n if isinstance(n, int) else max(n))


# The mask of upstream used the start of the ring as its number of rows.
RING = "length = self.max_size if self.rotated else self._idx", "length = self._idx"
mask_of_a_part_of_the_ring = mutant(BatchRotatingKVCache.make_mask, *RING)


@pytest.mark.planted
@planted(
    ("kv", KVCache, "restore", restore_one_further),
    ("kv", KVCache, "update_and_fetch", forget_what_was_cut),
    ("kv", KVCache, "_cut", nothing),
    ("kv", KVCache, "trim", refuse_to_clamp),
    ("kv", KVCache, "can_trim", ask_for_an_int),
    ("quantized", QuantizedKVCache, "_cut", nothing),
    ("quantized", QuantizedKVCache, "_drop", drop_one_short),
    ("rotating", RotatingKVCache, "restore", restore_without_the_index),
    ("rotating keep", RotatingKVCache, "can_trim", forget_what_was_evicted),
    ("chunked", ChunkedKVCache, "restore", restore_without_the_front),
    ("chunked", ChunkedKVCache, "_cut", nothing),
    ("chunked", ChunkedKVCache, "can_trim", forget_the_front),
    ("batch arrays", ArraysCache, "restore", restore_arrays_without_the_padding),
    ("batch arrays", ArraysCache, "_drop", drop_the_most_of_a_state),
    ("arrays", ArraysCache, "trim", trim_one_row_late),
    ("mixed", ArraysCache, "update", never_keep),
    ("arrays", ArraysCache, "update", always_keep),
    ("batch", BatchKVCache, "restore", restore_without_the_offsets),
    ("batch", BatchKVCache, "_cut", nothing),
    ("batch", BatchKVCache, "_ends", columns_for_rows),
    ("batch", BatchKVCache, "_drop", drop_the_least),
    ("batch rotating", BatchRotatingKVCache, "restore", restore_the_same_padding),
    ("batch rotating", BatchRotatingKVCache, "_drop", drop_and_keep_the_rows),
    ("batch rotating", BatchRotatingKVCache, "_drop", drop_the_least_of_a_window),
    ("batch rotating", BatchRotatingKVCache, "can_trim", forget_what_was_evicted),
    ("batch rotating", BatchRotatingKVCache, "make_mask", mask_of_a_part_of_the_ring),
    ("list of kv and rotating", CacheList, "trim", trim_the_first),
    ("list of kv and rotating", CacheList, "can_trim", ask_the_first),
    ("list of kv and rotating", CacheList, "restore", restore_the_first),
    ("layer", LayerCache, "restore", restore_without_the_groups),
)
def test_a_planted_fault_is_found(where: str) -> None:
    errors = (AssertionError, AttributeError, ValueError, IndexError, RuntimeError, pytest.fail.Exception)
    with pytest.raises(errors):
        run(BatchMachine if where in BATCHES else CacheMachine, where, SEARCH)


@pytest.mark.planted
def test_a_state_that_moves_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchKVCache, "state", BatchKVCache.state.getter(end_in_one_column))
    with pytest.raises((AssertionError, ValueError)):
        run(BatchMachine, "batch", SEARCH)


def fed(cache: Any, *lengths: int, batch: int = 1) -> Any:
    """Feed blocks of the tokens 1, 2, 3 and so on."""
    token = 1
    for length in lengths:
        feed(cache, [list(range(token, token + length))] * batch)
        token += length
    return cache


def test_a_chunk_without_its_front() -> None:
    """The next token of a trimmed cache lies in a chunk whose first row is gone."""
    cache = fed(ChunkedKVCache(4), 5, 1)
    assert cache.start_position == 1
    if can_trim_prompt_cache([cache], 3):
        trim_prompt_cache([cache], 3)
        assert feed(cache, [[9]])[1] == [[[1, 2, 3, 9]]]


def trimmed(cache: BatchRotatingKVCache, n: int) -> list[list[int]]:
    """The tokens that the next token of each sequence sees. Empty if the cache cannot drop ``n``."""
    if not can_trim_prompt_cache([cache], n):
        return []
    trim_prompt_cache([cache], n)
    return [seen[0] for seen in feed(cache, [[99]] * len(cache.offset.tolist()))[1]]


def test_a_batch_of_a_ring_and_a_block() -> None:
    """The second sequence has evicted rows that it would need."""
    cache = fed(BatchRotatingKVCache(5, [0]), 8)
    other = fed(BatchRotatingKVCache(5, [0]), *[1] * 8)
    cache.extend(other)
    right = [2, 3, 4, 5, 99]
    assert trimmed(cache, 3) in ([], [right, right])


def test_a_batch_of_long_and_short_prompts() -> None:
    """The padding of the short prompt does not count as rows."""
    cache = fed(BatchRotatingKVCache(5, [0, 0]), 8, 1, batch=2)
    cache.prepare(lengths=[1, 6], right_padding=[5, 0])
    feed(cache, [[10, 0, 0, 0, 0, 0], [10, 11, 12, 13, 14, 15]])
    cache.finalize()
    assert trimmed(cache, 3) in ([], [[4, 5, 6, 7, 99], [9, 10, 11, 12, 99]])


def test_a_block_of_padded_prompts() -> None:
    """The last columns of a short prompt are padding, not its last tokens."""
    cache = ArraysCache(2)
    cache.prepare(lengths=[1, 3], right_padding=[2, 0])
    feed(cache, [[1, 0, 0], [1, 2, 3]])
    cache.finalize()
    if can_trim_prompt_cache([cache], 1):
        trim_prompt_cache([cache], 1)
        assert cache[0].tolist() == [[0, 0], [1, 2]]


def test_a_turned_window_shows_a_block_all_rows() -> None:
    """The second sequence began six tokens later."""
    cache = fed(BatchRotatingKVCache(8, [0, 6]), *[1] * 9, batch=2)
    assert feed(cache, [[10, 11]] * 2)[1][1] == [[7, 8, 9, 10], [7, 8, 9, 10, 11]]


def test_a_snapshot_of_another_batch() -> None:
    cache = [fed(BatchKVCache([0, 0]), 3, batch=2)]
    trim_prompt_cache(cache, 3)
    snapshot = snapshot_prompt_cache(cache)
    cache[0].filter(mx.array([1]))
    with pytest.raises(ValueError, match="BatchKVCache was cut below the snapshot"):
        restore_prompt_cache(cache, snapshot)
    assert feed(cache[0], [[2]])[1] == [[[2]]]


def test_a_snapshot_of_rows_that_were_written_again() -> None:
    cache = [fed(KVCache(), 5)]
    snapshot = snapshot_prompt_cache(cache)
    trim_prompt_cache(cache, 2)
    feed(cache[0], [[7, 8, 9]])
    with pytest.raises(ValueError, match="KVCache was cut below the snapshot"):
        restore_prompt_cache(cache, snapshot)
    assert feed(cache[0], [[10]])[1] == [[[1, 2, 3, 7, 8, 9, 10]]]


def test_an_error_restores_nothing() -> None:
    """If one cache cannot be restored, the caches before it are not restored either."""
    for cache in ([fed(ArraysCache(2), 3), fed(KVCache(), 3)], [fed_list(ArraysCache(2), KVCache())]):
        snapshot = snapshot_prompt_cache(cache)
        state, rows = leaves(cache)
        trim_prompt_cache([rows], 1)
        feed(state, [[4]])
        before = state[0].tolist()
        with pytest.raises(ValueError, match="KVCache was cut below the snapshot"):
            restore_prompt_cache(cache, snapshot)
        assert state[0].tolist() == before


def fed_list(*caches: Any) -> CacheList:
    return CacheList(*(fed(cache, 3) for cache in caches))


def test_a_quantized_entry_is_put_back() -> None:
    cache: list[Any] = [fed(KVCache(), 3)]
    original, snapshot = cache[0], snapshot_prompt_cache(cache)
    for _ in range(2):
        cache[0] = cache[0].to_quantized(group_size=WIDTH, bits=8)
        fed(cache[0], 2)
        restore_prompt_cache(cache, snapshot)
        assert cache[0] is original
        assert cache[0].offset == 3
