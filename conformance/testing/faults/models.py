"""Wrong rollbacks, to plant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

accept = BlockVerifier.accept
RIGHT = {kind: kind.trim for kind in (KVCache, QuantizedKVCache, RotatingKVCache)}
# It comes with a later stage than what else is here.
drop: Any = getattr(ArraysCache, "trim", None)


def trim(cache: Any, n: int) -> None:
    """Trim rightly, whatever is planted."""
    next(RIGHT[kind] for kind in type(cache).__mro__ if kind in RIGHT)(cache, n)


def trim_one_short(cache: Any, n: int) -> int:
    trim(cache, max(n - 1, 0))
    return n


def trim_one_far(cache: Any, n: int) -> int:
    trim(cache, n + (n > 0))
    return n


def trim_and_swap_the_last_rows(cache: KVCache, n: int) -> int:
    """The number of rows is right, but their order is wrong."""
    trim(cache, n)
    if cache.offset < 2:
        return n
    last = mx.array([cache.offset - 1, cache.offset - 2])
    cache.keys[..., cache.offset - 2 : cache.offset, :] = cache.keys[..., last, :]
    return n


def trim_and_clear_a_row(cache: KVCache, n: int) -> int:
    trim(cache, n)
    if cache.offset > 0:
        cache.values[..., cache.offset - 1, :] = 0
    return n


def trim_out_of_step(cache: RotatingKVCache, n: int) -> int:
    """Each key is paired with the value of another token."""
    trim(cache, n)
    if n > 0:
        cache.values = mx.roll(cache.values, 1, axis=2)
    return n


def trim_to_the_wrong_place(cache: RotatingKVCache, n: int) -> int:
    """The rows move by one, so the next token overwrites a right one."""
    trim(cache, n)
    if n > 0:
        cache.keys, cache.values = (mx.roll(rows, 1, axis=2) for rows in (cache.keys, cache.values))
    return n


def keep_the_rejected_rows(cache: RotatingKVCache, n: int) -> int:
    cache.offset -= n
    return n


def keep_the_state(_: ArraysCache, n: int) -> int:
    return n


def drop_one_row_late(cache: ArraysCache, n: int) -> int:
    """The state still holds the first dropped token."""
    if n > 1:
        drop(cache, n - 1)
    cache.advance(-(n > 0))
    return n


def drop_to_zeros(cache: ArraysCache, n: int) -> int:
    drop(cache, n)
    if n > 0:
        cache.cache = [*cache.cache[:-1], mx.zeros_like(cache.cache[-1])]
    return n


def one_rejected_token_stays(verifier: BlockVerifier, n_accepted: int) -> None:
    accept(verifier, min(n_accepted + 1, verifier._n_draft))


def one_accepted_token_goes(verifier: BlockVerifier, n_accepted: int) -> None:
    accept(verifier, max(n_accepted - 1, 0))


def nothing_is_rejected(verifier: BlockVerifier, _: int) -> None:
    accept(verifier, verifier._n_draft)


# For each kind of cache: the class, the method to replace, and the replacement.
FAULTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "kv": [
        (KVCache, "trim", trim_one_short),
        (KVCache, "trim", trim_one_far),
        (KVCache, "trim", trim_and_swap_the_last_rows),
        (KVCache, "trim", trim_and_clear_a_row),
        (BlockVerifier, "accept", one_rejected_token_stays),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
    "quantized": [
        (QuantizedKVCache, "trim", trim_one_short),
        (QuantizedKVCache, "trim", trim_one_far),
        (BlockVerifier, "accept", one_rejected_token_stays),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
    "window": [
        (RotatingKVCache, "trim", trim_to_the_wrong_place),
        (RotatingKVCache, "trim", trim_out_of_step),
        (RotatingKVCache, "trim", keep_the_rejected_rows),
        (BlockVerifier, "accept", one_rejected_token_stays),
    ],
    "recurrent": [
        (ArraysCache, "trim", keep_the_state),
        (ArraysCache, "trim", drop_one_row_late),
        (ArraysCache, "trim", drop_to_zeros),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
}
