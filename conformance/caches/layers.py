"""Use caches as the layers of a model do. A token is a number, and its keys, values and states are that number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchRotatingKVCache, ChunkedKVCache, QuantizedKVCache, RotatingKVCache

from conformance.subjects.architectures import leaves as leaves

try:
    from mlx_lm.models.recurrent import block_state as block_state
except ImportError:

    def block_state(state: mx.array, n_tokens: int, after: Callable[[int], mx.array]) -> mx.array:
        # A release whose recurrent layers drop nothing.
        return state


def feed(caches: Iterable[Any], *block: list[int]) -> list[Any]:
    """Feed a row, or several. Returns what each token sees: by layer, row, token and column, 0 where it sees none."""
    tables = []
    for cache in leaves(caches):
        tables += (feed_states if isinstance(cache, ArraysCache) else feed_keys)(cache, block)
    return tables


def feed_keys(cache: Any, block: Any) -> list[Any]:
    n = len(block[0])
    mask = (
        chunk_mask(cache, n)
        if isinstance(cache, ChunkedKVCache)
        else cache.make_mask(n, return_array=False, window_size=None)
    )
    rows = mx.broadcast_to(mx.array(block, mx.float32)[:, None, :, None], (len(block), 1, n, 32))
    fetched = cache.update_and_fetch(rows, -rows)
    keys, values = fetched
    if isinstance(cache, QuantizedKVCache):
        keys, values = (mx.dequantize(*one, group_size=cache.group_size, bits=cache.bits) for one in fetched)
    shape = (len(block), 1, n, keys.shape[2])
    if mask is None or isinstance(mask, str):
        mask = mx.tril(mx.ones(shape, mx.bool_), k=shape[3] - n)
    # A row that is no token, such as padding, is -1.
    held = mx.where((keys == -values) & (keys != 0), keys, -1).astype(mx.int32)[:, :, None, :, 0]
    seen = mx.where(mx.broadcast_to(mask, shape), held, 0)[:, 0]
    # The tokens of a draft may see their rows in an order of their own.
    orders = getattr(keys, "columns", [slice(None)] * n)
    by_token = [seen[:, t][:, order] for t, order in enumerate(orders)]
    mx.eval(by_token)
    return [[list(row) for row in zip(*[one.tolist() for one in by_token], strict=True)]]


def chunk_mask(cache: Any, n: int) -> mx.array:
    # As in llama4: a query sees its own chunk.
    cache.maybe_trim_front()
    keys = mx.arange(cache.start_position, cache.offset + n)
    queries = mx.arange(cache.offset, cache.offset + n)[:, None]
    return (keys <= queries) & (keys // cache.chunk_size == queries // cache.chunk_size)


def feed_states(cache: Any, block: Any) -> list[Any]:
    """Two states, as of a short convolution and of a recurrence: the last two tokens, and all."""
    n, tables = len(block[0]), []
    mask = cache.make_mask(n)
    real = [[True] * n] * len(block) if mask is None else mask.tolist()
    for entry, size in enumerate((2, 256)):
        rows = [[0] * size] * len(block) if cache[entry] is None else cache[entry].tolist()
        after = []
        for t in range(n):
            fed = zip(rows, block, real, strict=True)
            rows = [[*row[1:], new[t]] if one[t] else row for row, new, one in fed]
            after.append(rows)
        cache[entry] = block_state(mx.array(rows), n, lambda m, after=after: mx.array(after[m - 1]))
        tables.append([list(row) for row in zip(*after, strict=True)])
    cache.advance(n)
    return tables


def look(caches: list[Any], *block: list[int]) -> list[Any]:
    """What each token would see."""
    copies = copy.deepcopy(caches)
    for cache in leaves(copies):
        if isinstance(cache, RotatingKVCache | BatchRotatingKVCache):
            # It forgets a snapshot, after which the series takes a block for a draft.
            cache.state = cache.state
    return feed(copies, *block)


def offsets(caches: list[Any]) -> list[Any]:
    """The position of the next token, as layers read it, in the order of what they see."""
    found = []
    for cache in leaves(caches):
        offset = getattr(cache, "offset", None)
        found += [offset.tolist() if isinstance(offset, mx.array) else offset] * (1 + isinstance(cache, ArraysCache))
    return found


def merge(*rows: list[Any]) -> list[Any]:
    """The caches of a batch of these sequences."""
    return [columns[0].merge(list(columns)) for columns in zip(*rows, strict=True)]
