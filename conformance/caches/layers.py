"""Use caches as the layers of a model do. A token is a number, and its keys, values and states are that number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchRotatingKVCache, ChunkedKVCache, QuantizedKVCache, RotatingKVCache

try:
    from mlx_lm.models.deepseek_v41 import LayerCache as LayerCache
    from mlx_lm.models.deepseek_v41 import _append, _window_indices
except ImportError:
    # Older releases lack this model.
    _append = _window_indices = None

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
        if isinstance(cache, ArraysCache):
            tables += feed_states(cache, block)
        else:
            tables += feed_groups(cache, block) if hasattr(cache, "update_window") else feed_keys(cache, block)
    return tables


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    for cache in caches:
        yield from leaves(cache.caches) if hasattr(cache, "caches") else [cache]


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
    for entry, size in enumerate((2, 512)):
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


def feed_groups(cache: Any, block: Any) -> list[Any]:
    """As in deepseek_v41: a window, and groups of four tokens beside those of the group that is still open."""
    rows, n = mx.array(block)[..., None], len(block[0])
    previous = 0 if cache.window is None else cache.window.shape[1]
    kv, gate = _append(cache.pending_kv, rows), _append(cache.pending_gate, -rows)
    full = kv.shape[1] // 4 * 4
    cache.pending_kv, cache.pending_gate = kv[:, full:], gate[:, full:]
    if full > 0:
        cache.compress_kv = _append(cache.compress_kv, kv[:, :full].reshape(1, -1, 4))
        cache.index_k = _append(cache.index_k, gate[:, :full].reshape(1, -1, 4))
    indices = _window_indices(previous=previous, length=n, window=cache.window_size).tolist()
    window = cache.update_window(rows)[0, :, 0].tolist()
    parts = ((cache.compress_kv, cache.pending_kv), (cache.index_k, cache.pending_gate))
    kv, gate = ([x for part in both if part is not None for x in part.flatten().tolist()] for both in parts)
    held = [token if token == -other else 0 for token, other in zip(kv, gate, strict=True)]
    seen = [[window[i] if i >= 0 else 0 for i in query] for query in indices]
    return [[seen], [[held[: len(held) - n + 1 + t] for t in range(n)]]]


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
        two = isinstance(cache, ArraysCache) or hasattr(cache, "update_window")
        found += [offset.tolist() if isinstance(offset, mx.array) else offset] * (1 + two)
    return found


def merge(*rows: list[Any]) -> list[Any]:
    """The caches of a batch of these sequences."""
    return [columns[0].merge(list(columns)) for columns in zip(*rows, strict=True)]
