"""Measure the costs of blocks in the place where they are fed, and work out the most that a run can gain."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from conformance.bench.models import Cache, copied

Costs = dict[int, float]
Samples = dict[int, list[float]]
# The number of plain decoding steps in one timing.
STEPS = 10


def block_samples(model: Any, cache: Cache, lengths: Sequence[int], repeats: int) -> Samples:
    """The seconds of blocks of each length, fed after the content of a cache. The lengths take turns."""
    samples: Samples = {length: [] for length in lengths}
    cache = copied(cache)
    trimmed = can_trim_prompt_cache(cache)
    # The first round grows the cache.
    for repeat in range(repeats + 1):
        for length in lengths:
            used = cache if trimmed else copied(cache)
            tokens = mx.array([[1 + i % 7 for i in range(length)]])
            start = time.perf_counter()
            mx.eval(model(tokens, cache=used))
            if repeat:
                samples[length].append(time.perf_counter() - start)
            if trimmed:
                trim_prompt_cache(used, length)
    return samples


def plain_step(model: Any, cache: Cache, repeats: int) -> float:
    """The cost of a plain decoding step, in forward passes of one token. Its preparation overlaps the step before."""
    steps = generate_step(mx.array([1, 2]), model, max_tokens=-1, prompt_cache=copied(cache))
    waited, ratios = copied(cache), []
    with closing(steps):
        next(steps)
        for _ in range(repeats):
            mx.synchronize(generation_stream)
            start = time.perf_counter()
            for _ in range(STEPS):
                next(steps)
            mx.synchronize(generation_stream)
            middle = time.perf_counter()
            for i in range(STEPS):
                mx.eval(model(mx.array([[1 + i % 7]]), cache=waited))
            ratios.append((middle - start) / (time.perf_counter() - middle))
    return statistics.median(ratios)


def relative(samples: Samples) -> Costs:
    """The medians, in forward passes of one token."""
    seconds = {length: statistics.median(values) for length, values in samples.items()}
    return {length: value / seconds[1] for length, value in seconds.items()}


def cost(costs: Mapping[int, float], length: int) -> float:
    """The cost of a block: linear between the measured lengths, and extended from the last two."""
    if length in costs:
        return costs[length]
    known = sorted(costs)
    i = min(max(bisect_left(known, length), 1), len(known) - 1)
    a, b = known[i - 1], known[i]
    return costs[a] + (costs[b] - costs[a]) * (length - a) / (b - a)


def ideal(blocks: Mapping[int, int], tokens: float, costs: Mapping[int, float]) -> float:
    """The speed of a run if only blocks cost time: tokens of a forward pass divided by the mean cost of a block."""
    return tokens / sum(count * cost(costs, length) for length, count in blocks.items())


def pooled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the ideal speed to rows, from the median costs of like rows: the costs of one prompt are noisy."""
    samples: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, float]]] = {}
    for row in rows:
        prompt = row["task"], row["answer"], row["turn"]
        samples.setdefault(alike(row), {})[prompt] = row["block_costs"]
    found = []
    for row in rows:
        each = samples[alike(row)].values()
        costs = {int(n): statistics.median(costs[n] for costs in each) for n in row["block_costs"]}
        blocks = {int(n): count for n, count in row["blocks"].items()}
        tokens = row["tokens_per_forward"] * sum(blocks.values()) - row["near_ties"]
        best = ideal(blocks, tokens, costs)
        found.append(row | {"ideal": best, "reached": row["speed"] and row["speed"] / best})
    return found


def alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The labels that the cost of a block depends on."""
    return tuple(row[name] for name in ("device", "model", "weights", "kv", "size"))


def block_lengths(recorded: Sequence[tuple[int, int]], forwards: int) -> Counter[int]:
    """How many blocks of each length a run fed. A block is one token and the draft."""
    lengths = Counter(1 + drafted for _, drafted in recorded)
    lengths[1] += forwards - len(recorded)
    return lengths


def by_position(recorded: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(accepted, drafted) tokens for each place in a draft."""
    longest = max((drafted for _, drafted in recorded), default=0)
    return [
        (sum(accepted > i for accepted, _ in recorded), sum(drafted > i for _, drafted in recorded))
        for i in range(longest)
    ]
