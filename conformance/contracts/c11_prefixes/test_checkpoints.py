"""The memory of checkpoints: what is counted is held, and no more of them is kept than was asked for."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, Checkpoint, KVCache, LRUPromptCache, RotatingKVCache

from conformance.oracle.findings import broken

# Texts are of this many tokens or a multiple: of arrays that are less than 16 KiB longer, MLX makes no copy.
PART, WIDTH = 256, 32


def append(cache: Any, tokens: Sequence[int]) -> list[int]:
    """Feed tokens as rows that say which they are. Returns those that the layer sees, or the sum of all."""
    if isinstance(cache, ArraysCache):
        before = 0 if cache[0] is None else cache[0][0, -1, 0].item()
        # A view of a longer array, as after much at once.
        cache[0] = mx.full((1, 8 * PART, WIDTH), before + sum(tokens))[:, -2 * PART :]
        mx.eval(cache[0])
        return [cache[0][0, 0, 0].item()]
    rows = mx.contiguous(mx.repeat(mx.array(list(tokens))[None, None, :, None], WIDTH, axis=-1))
    seen = cache.update_and_fetch(rows, -rows)[0]
    mx.eval(cache.state)
    found: list[int] = seen[0, 0, :, 0].tolist()
    return found


def ask(stored: LRUPromptCache, text: list[int]) -> None:
    """Read what is not cached of a text in parts, with a checkpoint behind each."""
    cache, rest = stored.fetch_nearest_cache("model", text)
    n = found = len(text) - len(rest)
    cache, taken = cache or [KVCache(), RotatingKVCache(PART), ArraysCache(1)], {}
    while n < len(text):
        part = text[n : n + PART]
        n += len(part)
        right = text[:n], text[max(n - len(part) - PART + 1, 0) : n], [sum(text[:n])]
        for layer, wanted in zip(cache, right, strict=True):
            if append(layer, part)[:n] != wanted:
                broken(f"behind {found} tokens that were found, the {type(layer).__name__} of {n} tokens differs")
        if n < len(text):
            taken[n] = Checkpoint(cache)
    cache[2][0] = mx.contiguous(cache[2][0])
    mx.eval(cache[2][0])
    stored.insert_cache("model", text, cache, checkpoints=taken)


def memory() -> int:
    gc.collect()
    # What was computed last is still held by its thread.
    mx.synchronize()
    held: int = mx.get_active_memory()
    return held


@pytest.mark.parametrize("limit", [1 << 63, 4 << 20, 1 << 20, 1 << 18])
def test_memory_stays_below_its_limit(limit: int) -> None:
    """Over requests that share their beginnings, the bytes are what is really held, and what comes back is right."""
    stored, before = LRUPromptCache(4, limit, max_checkpoints=3), memory()
    rng, texts = random.Random(0), [list(range(4 * PART))]
    for i in range(40):
        text, new = rng.choice(texts[-4:]), range(1000 * i, 1000 * i + PART * rng.randrange(1, 4))
        texts.append([*text[: PART * rng.randrange(len(text) // PART + 1)], *new])
        ask(stored, texts[-1])
        held, said = memory() - before, stored.nbytes
        # MLX may use a buffer again that is a little longer.
        if held != pytest.approx(said, rel=0.01) or said > limit:
            broken(f"{held} bytes are held of {limit}, and {said} are counted")
