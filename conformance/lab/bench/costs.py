"""Time blocks of tokens of each length after the content of a cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from conformance.lab.bench.models import Cache, copied


def block_seconds(model: Any, cache: Cache, lengths: Sequence[int], repeats: int, n_rows: int = 1) -> dict[int, float]:
    """The median seconds of a block of each length, in ``n_rows`` rows. The lengths take turns.

    Each round has one more token before its blocks: CUDA prepares its attention for each length of the context anew.
    """
    samples: dict[int, list[float]] = {length: [] for length in lengths}
    cache = copied(cache)
    trimmed = can_trim_prompt_cache(cache)
    for _ in range(repeats + 1):
        mx.eval(model(mx.array([[1]] * n_rows), cache=cache))
        for length in lengths:
            used = cache if trimmed else copied(cache)
            tokens = mx.array([[1 + i % 7 for i in range(length)]] * n_rows)
            start = time.perf_counter()
            mx.eval(model(tokens, cache=used))
            samples[length].append(time.perf_counter() - start)
            if trimmed:
                trim_prompt_cache(used, length)
    # The first round compiles, and grows the cache.
    return {length: statistics.median(values[1:]) for length, values in samples.items()}
