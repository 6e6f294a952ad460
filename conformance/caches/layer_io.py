"""Use a cache as a layer does, and record everything that the layer sees of it.

A token is a number, and its keys and values encode it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as product
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from conformance.caches.reference import GROUP, PAD, TAIL, Block, Grouped, Recurrent, Reference, fold

try:
    from mlx_lm.models.deepseek_v41 import LayerCache, _append, _window_indices
except ImportError:
    # Older releases lack this model. Their other caches are still tested.
    LayerCache = type("LayerCache", (), {})

try:
    from mlx_lm.models.recurrent import block_state
except ImportError:
    # A stage or a release in which recurrent layers drop nothing.
    def block_state(state: mx.array, _: int, after: Callable[[int], mx.array]) -> mx.array:
        return state


LONGEST = 12
# Quantization needs this width.
WIDTH = 32


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def as_lists(value: Any) -> Any:
    """Turn arrays into numbers and lists, which can be compared."""
    return tree_map(lambda x: x.tolist() if isinstance(x, mx.array) else x, value)


# Each of these functions feeds a block as one kind of layer does. It returns everything that the layer sees, as numbers
# and lists, and the tokens that each query sees.


def mask_of(cache: Any, length: int) -> Any:
    if not isinstance(cache, ChunkedKVCache):
        return cache.make_mask(length, return_array=False, window_size=None)
    # As in llama4: a query sees its own chunk.
    cache.maybe_trim_front()
    keys = mx.arange(cache.start_position, cache.offset + length)
    queries = mx.arange(cache.offset, cache.offset + length)[:, None]
    return (keys <= queries) & (keys // cache.chunk_size == queries // cache.chunk_size)


def feed_rows(cache: Any, block: Block) -> tuple[Any, list[Block]]:
    mask = mask_of(cache, len(block[0]))
    rows = mx.array(block, dtype=mx.float32)[:, None, :, None]
    rows = mx.broadcast_to(rows, (*rows.shape[:3], WIDTH))
    answer = cache.update_and_fetch(rows, -rows)
    keys, values = answer
    if isinstance(cache, QuantizedKVCache):
        keys, values = (mx.dequantize(*x, group_size=cache.group_size, bits=cache.bits) for x in answer)
    shape = (len(block), 1, len(block[0]), keys.shape[2])
    if mask is None or isinstance(mask, str):
        mask = mx.tril(mx.ones(shape, dtype=mx.bool_), k=shape[3] - shape[2])
    visible = mx.broadcast_to(mask, shape)[:, 0].tolist()
    tokens = keys[:, 0, :, 0].tolist()
    assert tokens == (-values[:, 0, :, 0]).tolist()
    seen = [[chosen(row, q) for q in queries] for row, queries in zip(tokens, visible, strict=True)]
    # Columns that no query of a row sees may hold anything, such as those after its last token.
    shown = [
        [token if any(column) else PAD for token, *column in zip(row, *queries, strict=True)]
        for row, queries in zip(tokens, visible, strict=True)
    ]
    return (shown, visible), seen


def chosen(tokens: list[float], visible: list[bool]) -> list[int]:
    return sorted(int(token) for token, one in zip(tokens, visible, strict=True) if one)


def feed_state(cache: ArraysCache, block: Block) -> tuple[Any, list[Block]]:
    length = len(block[0])
    mask = as_lists(cache.make_mask(length)) or [[True] * length] * len(block)
    tails, states = as_lists(cache.cache) if cache[0] is not None else ([[PAD] * TAIL] * len(block), [0] * len(block))
    after = []
    for t in range(length):
        fed = [row[t : t + 1] if one[t] else [] for row, one in zip(block, mask, strict=True)]
        tails = [(tail + tokens)[-TAIL:] for tail, tokens in zip(tails, fed, strict=True)]
        states = [fold(tokens, state) for state, tokens in zip(states, fed, strict=True)]
        after.append((tails, states))
    # One entry is used as by a convolution, the other as by a recurrent state.
    cache[0] = block_state(mx.array(tails), length, lambda n: mx.array(after[n - 1][0]))
    cache[1] = block_state(mx.array(states), length, lambda n: mx.array(after[n - 1][1]))
    cache.advance(length)
    return after, []


def feed_layer(cache: LayerCache, block: Block) -> tuple[Any, list[Block]]:
    rows = mx.array(block)[..., None]
    previous = 0 if cache.window is None else cache.window.shape[1]
    kv, gate = _append(cache.pending_kv, rows), _append(cache.pending_gate, -rows)
    full = kv.shape[1] // GROUP * GROUP
    cache.pending_kv, cache.pending_gate = kv[:, full:], gate[:, full:]
    if full > 0:
        cache.compress_kv = _append(cache.compress_kv, kv[:, :full].reshape(1, -1, GROUP).sum(axis=-1, keepdims=True))
        cache.index_k = _append(cache.index_k, gate[:, :full].reshape(1, -1, GROUP).sum(axis=-1, keepdims=True))
    indices = _window_indices(previous=previous, length=len(block[0]), window=cache.window_size).tolist()
    tokens = cache.update_window(rows)[0, :, 0].tolist()
    return (tokens, indices), [[sorted(tokens[i] for i in query if i >= 0) for query in indices]]


def feed(cache: Any, block: Block) -> tuple[Any, list[Block]]:
    if isinstance(cache, ArraysCache):
        return feed_state(cache, block)
    return feed_layer(cache, block) if isinstance(cache, LayerCache) else feed_rows(cache, block)


def metadata(cache: Any) -> dict[str, Any]:
    """All attributes of a cache except its buffers. Feeding shows the content of those."""
    hidden = {"keys", "values", "_mark", "_is_armed", "_block"}
    seen = {name: as_lists(value) for name, value in vars(cache).items() if name not in hidden}
    seen |= {"empty": cache.empty(), "trimmable": cache.is_trimmable()}
    if not isinstance(cache, LayerCache):
        seen["size"] = cache.size()
    if not isinstance(cache, ArraysCache):
        # A snapshot leaves out what a cache keeps of the last block for a rollback.
        seen["can trim"] = [product.can_trim_prompt_cache([cache], n) for n in range(LONGEST + 2)]
    return seen


def compare(cache: Any, reference: Reference) -> None:
    """Compare what can be seen without feeding."""
    fed = reference.shortest > 0
    assert not (fed and cache.empty())
    if isinstance(reference, Recurrent):
        assert not fed or as_lists(cache.cache) == [reference.tails, reference.states]
        assert as_lists(cache.lengths) == reference.lengths
        padding = as_lists(cache.left_padding) or [0] * len(reference.left)
        assert [max(left, 0) for left in padding] == reference.padding_to_come
    elif isinstance(reference, Grouped):
        open_, closed = as_lists(cache.pending_kv), as_lists(cache.compress_kv)
        assert [[token for (token,) in rows] for rows in open_ or [[]]] == reference.open
        assert [[token for (token,) in rows] for rows in closed or [[]]] == reference.closed
    elif reference.lengths is None:
        offsets = as_lists(cache.offset)
        assert (offsets if isinstance(offsets, list) else [offsets]) == reference.offsets
    if isinstance(cache, KVCache | RotatingKVCache):
        assert cache.size() == len(reference.view(reference.rows[0]))
