"""The state machines find planted faults: in the source of a function of the caches, a piece is replaced."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    _BaseCache,
)
from mlx_lm.models.deepseek_v41 import LayerCache
from mlx_lm.models.recurrent import BlockState

from conformance.caches import layer_io, machines
from conformance.caches.batch_machine import BATCHES, BatchMachine
from conformance.caches.machines import CacheMachine, run, small_steps
from conformance.subjects.families import mutant

__all__ = ["small_steps"]

# Nearly all are found by the 40 programs of a run of the suite. The failing one need not be shrunk.
SEARCH = settings(parent=settings.get_profile("quick"), max_examples=4000)
CUT = "map(min, self._mark.kept, self._lengths())", "self._mark.kept"
STATE, LISTED = "state, attributes = _copy_handles(snapshot)", "list of kv and rotating"
HELD = "_copy_handles(attributes)"
FITS = "self._idx - self.max_size if self._idx != self.offset else self.offset"
OF_ARRAYS, ROWS = "rows = _per_row(n, self.batch_size)", "rows = _per_row(n, self.offset.size)"
LEAST = "rows = [min(_per_row(n, self.offset.size))] * self.offset.size"
# The kind of cache that shows it, the class or module, its function, and a piece of its source with what replaces it.
FAULTS: list[tuple[str, Any, str, str, str]] = [
    ("kv", KVCache, "restore", HELD, f"{HELD} | {{'offset': attributes['offset'] + 1}}"),
    # It forgets that rows were cut once they are overwritten.
    ("kv", KVCache, "_check", "map(gt, lengths, mark.kept)", "map(gt, lengths, self._lengths())"),
    ("kv", KVCache, "_cut", *CUT),
    ("kv", KVCache, "_check_trim", "_BaseCache.can_trim(self, n)", "False"),
    ("quantized", QuantizedKVCache, "_cut", *CUT),
    ("quantized", QuantizedKVCache, "trim", "self.offset -= n", "self.offset -= max(n - 1, 0)"),
    ("quantized on the way", machines, "restore_prompt_cache", "cache[i] = c", "pass"),
    ("rotating", _BaseCache, "restore", STATE, f"{STATE}; state = (*state[:-1], self._idx)"),
    ("rotating keep", RotatingKVCache, "can_trim", FITS, "self._idx"),
    ("chunked", ChunkedKVCache, "trim", "self.offset -= n", "self.offset -= max(n - 1, 0)"),
    ("chunked", _BaseCache, "restore", STATE, f"{STATE}; state = (*state[:-1], self.start_position)"),
    ("chunked", ChunkedKVCache, "can_trim", "end - end % self.chunk_size", "end"),
    # The state still holds the first dropped token.
    ("arrays", BlockState, "without_last", "self.n_tokens - m", "self.n_tokens - m + 1"),
    # Single tokens keep what it takes to trim them. Or no block does.
    ("arrays", layer_io, "block_state", "1 < n_tokens", "0 < n_tokens"),
    ("mixed", layer_io, "block_state", "1 < n_tokens", "SHORT_BLOCK < n_tokens"),
    # An error restores the caches before the one that cannot be restored.
    ("mixed", machines, "restore_prompt_cache", "_check_snapshot(snapshot)", "pass"),
    ("mixed", CacheList, "_check", "_check_snapshot(snapshot)", "pass"),
    (LISTED, CacheList, "trim", "trim_prompt_cache(self.caches, n)", "self.caches[0].trim(n)"),
    (LISTED, CacheList, "can_trim", "can_trim_prompt_cache(self.caches, n)", "self.caches[0].can_trim(n)"),
    (LISTED, CacheList, "restore", "(self.caches, snapshot)", "(self.caches[:1], snapshot[:1])"),
    ("layer", LayerCache, "restore", "(snapshot)", "(item for item in snapshot.items() if 'pending' not in item[0])"),
    ("batch arrays", _BaseCache, "restore", STATE, f"{STATE}; state = (state[0], self.left_padding, state[2])"),
    ("batch arrays", ArraysCache, "trim", OF_ARRAYS, "rows = [max(_per_row(n, self.batch_size))] * self.batch_size"),
    ("batch", BatchKVCache, "restore", HELD, f"{HELD} | {{'offset': attributes['offset'] + 1}}"),
    ("batch", BatchKVCache, "_cut", *CUT),
    ("batch", BatchKVCache, "filter", "self._mark = None", "pass"),
    # A row that ends before the others does not count where it ends.
    ("batch", BatchKVCache, "_lengths", "self._behind or [0]", "[0]"),
    ("batch", BatchKVCache, "trim", ROWS, LEAST),
    # Reading the state moves the rows.
    ("batch", BatchKVCache, "state", "return self.keys", "self._align(); return self.keys"),
    # The snapshot shares its padding with the cache, so feeding changes it.
    ("batch rotating", _BaseCache, "restore", STATE, f"{STATE}; state = snapshot[0]"),
    ("batch rotating", BatchRotatingKVCache, "trim", "if max(rows) > 0 and", "if max(rows) > min(rows) and"),
    ("batch rotating", BatchRotatingKVCache, "trim", ROWS, LEAST),
    # Rows that were evicted count, and the padding of a short prompt.
    ("batch rotating", BatchRotatingKVCache, "can_trim", "row - m >= self.max_size", "True"),
    ("batch rotating", BatchRotatingKVCache, "can_trim", "size <= row", "size"),
    ("batch rotating", BatchRotatingKVCache, "can_trim", "self._idx - max(p, 0)", "self._idx"),
    # As in upstream, the start of the ring is its number of rows.
    ("batch rotating", BatchRotatingKVCache, "make_mask", "self.max_size if self.rotated else self._idx", "self._idx"),
]


@pytest.mark.planted
@pytest.mark.parametrize(
    ("kind", "owner", "name", "right", "wrong"),
    FAULTS,
    ids=[f"{kind}-{owner.__name__.rpartition('.')[2]}.{name}-{right}" for kind, owner, name, right, _ in FAULTS],
)
def test_a_planted_fault_is_found(
    kind: str, owner: Any, name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = getattr(owner, name)
    is_property = isinstance(held, property)
    fault: Any = mutant(held.fget if is_property else held, right, wrong)
    monkeypatch.setattr(owner, name, held.getter(fault.fget) if is_property else fault)
    with pytest.raises((AssertionError, AttributeError, ValueError, IndexError, RuntimeError, pytest.fail.Exception)):
        run(BatchMachine if kind in BATCHES else CacheMachine, kind, SEARCH)
