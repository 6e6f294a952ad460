"""Measure what blocks of each length cost after contexts of each length, and work out the most that a run can gain."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from conformance.bench.models import Cache, Subject, copied
from conformance.bench.plan import Plan, Progress

PREFIX = "block of "


def block_seconds(model: Any, cache: Cache, lengths: Sequence[int], repeats: int) -> dict[int, float]:
    """The median seconds of blocks of each length, fed after the content of a cache. The lengths take turns."""
    samples: dict[int, list[float]] = {length: [] for length in lengths}
    cache = copied(cache)
    trimmed = can_trim_prompt_cache(cache)
    for _ in range(repeats + 1):
        for length in lengths:
            used = cache if trimmed else copied(cache)
            tokens = mx.array([[1 + i % 7 for i in range(length)]])
            start = time.perf_counter()
            mx.eval(model(tokens, cache=used))
            samples[length].append(time.perf_counter() - start)
            if trimmed:
                trim_prompt_cache(used, length)
    # The first round grows the cache.
    return {length: statistics.median(values[1:]) for length, values in samples.items()}


def measure(subject: Subject, contexts: Sequence[int], plan: Plan, progress: Progress) -> Iterator[dict[str, Any]]:
    """A row for each context. Costs are in forward passes of one token."""
    vocab = subject.tokenizer.vocab_size
    for context in contexts:
        cache = subject.prefilled([i * 7 % vocab for i in range(context)])
        seconds = block_seconds(subject.model, cache, plan.lengths, plan.repeats)
        progress(f"blocks: {subject.name} {subject.weights} at {context} tokens, {1e3 * seconds[1]:.1f} ms a token")
        yield subject.labels() | {
            "context": context,
            "ms a token": 1e3 * seconds[1],
            **{f"{PREFIX}{length}": value / seconds[1] for length, value in seconds.items()},
            "MiB of cache": sum(c.nbytes for c in cache) / 2**20,
        }


def ideal(n_tokens: int, blocks: Mapping[int, int], costs: Mapping[int, float]) -> float:
    """The speed of a run if only blocks cost time: ``blocks`` counts those of each length, which brought ``n_tokens``.

    Costs are linear between the measured lengths, and beyond the longest one.
    """
    known = sorted(costs)
    prices = np.interp(list(blocks), known, [costs[n] for n in known])
    *_, a, b = known
    prices += (costs[b] - costs[a]) / (b - a) * np.maximum(np.array(list(blocks)) - b, 0)
    return float(n_tokens / sum(prices * list(blocks.values())))
