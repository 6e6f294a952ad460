"""Wrong rollbacks to plant."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

RIGHT = {kind: kind.trim for kind in (KVCache, QuantizedKVCache, RotatingKVCache)}


def trim(cache: Any, n: int) -> None:
    """Trim rightly, whatever is planted."""
    next(RIGHT[kind] for kind in type(cache).__mro__ if kind in RIGHT)(cache, n)


def trim_one_short(cache: Any, n: int) -> int:
    trim(cache, max(n - 1, 0))
    return n


def trim_to_the_wrong_place(cache: RotatingKVCache, n: int) -> int:
    """The rows move by one, so the next token overwrites a right one."""
    trim(cache, n)
    if n > 0:
        cache.keys, cache.values = (mx.roll(rows, 1, axis=2) for rows in (cache.keys, cache.values))
    return n


def keep_the_state(_: ArraysCache, n: int) -> int:
    return n
