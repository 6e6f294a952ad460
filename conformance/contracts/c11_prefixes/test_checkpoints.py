"""Checkpoints of each cache class: what comes back, what they hold, and how many of them are kept."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    Checkpoint,
    ChunkedKVCache,
    KVCache,
    LRUPromptCache,
    RotatingKVCache,
    keep_places,
)
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.caches.kinds import SINGLE, World
from conformance.caches.layers import leaves

WIDTH = 32
# Tokens that are fed at once, and how many of each part are behind a place.
PARTS, BEHIND = (7, 12, 1, 9, 1, 1), (0, 1, 4)
TAIL = ([101, 102, 103], [104], [105, 106])


def fed(world: World, *parts: list[int]) -> list[Any]:
    """Feed parts of a sequence. Returns what the layers see of them."""
    return [world.feed([part]) for part in parts]


@pytest.mark.parametrize("kind", SINGLE)
def test_a_cache_goes_back(kind: str) -> None:
    """To each place, from each later one, to what it was: twice, whatever was fed in between."""
    tokens, taken = list(range(1, sum(PARTS) + 1)), dict[int, Checkpoint]()
    world, n = SINGLE[kind].world(6), 0
    for length in PARTS:
        # A layer of deepseek_v41 has no state inside of what is fed at once.
        behind = [m for m in BEHIND if m < length and (m == 0 or not isinstance(world.caches[0], LayerCache))]
        keep_places(world.caches, [{m: length - m for m in behind if m}])
        fed(world, tokens[n : n + length])
        n += length
        taken |= {n - m: Checkpoint(world.caches, m) for m in behind}
        keep_places(world.caches, [])
    for place, checkpoint in taken.items():
        right = SINGLE[kind].world(6)
        fed(right, tokens[:place])
        references = deepcopy(right.references)
        wanted = fed(right, *TAIL)
        for _ in range(2):
            caches = deepcopy(world.caches)
            assert checkpoint.restore(caches, n - place), f"{kind} cannot go back from {n} tokens to {place}"
            seen = fed(World(caches, deepcopy(references)), *TAIL)
            assert seen == wanted, f"{kind}, back from {n} tokens to {place}: the next tokens see {seen}, not {wanted}"


def memory() -> int:
    gc.collect()
    # What was computed last is still held by its thread.
    mx.synchronize()
    held: int = mx.get_active_memory()
    return held


def about(nbytes: int) -> Any:
    # MLX may use a buffer again that is a little longer.
    return pytest.approx(nbytes, rel=0.01)


# Texts are of this many tokens or a multiple: of arrays that are less than 16 KiB longer, MLX makes no copy.
PART, MOST = 256, 3
# A layer of each class, and how many rows of keys and values, or of a state, a checkpoint holds of it.
HELD: dict[str, tuple[Callable[[], Any], int]] = {
    "kv": (KVCache, 0),
    "rotating": (lambda: RotatingKVCache(PART), 2 * PART),
    "arrays": (lambda: ArraysCache(1), 2 * PART),
    "chunked": (lambda: ChunkedKVCache(PART), 2 * PART),
    "layer": (lambda: LayerCache(PART), PART),
    "list": (lambda: CacheList(KVCache(), RotatingKVCache(PART)), 2 * PART),
}


def append(cache: Any, tokens: Sequence[int]) -> list[int]:
    """Feed tokens as rows that say which they are. Returns those that the layer sees, or the sum of all."""
    if isinstance(cache, ArraysCache):
        before = 0 if cache[0] is None else cache[0][0, -1, 0].item()
        # After much at once it is a view of a longer array.
        cache[0] = mx.full((1, max(len(tokens), 2 * PART), WIDTH), before + sum(tokens))[:, -2 * PART :]
        mx.eval(cache[0])
        return [cache[0][0, 0, 0].item()]
    rows = mx.contiguous(mx.repeat(mx.array(list(tokens))[None, None, :, None], WIDTH, axis=-1))
    if isinstance(cache, LayerCache):
        seen = cache.update_window(rows[:, 0])[:, None]
    else:
        seen = cache.update_and_fetch(rows, -rows)[0]
    mx.eval(cache.state)
    found: list[int] = seen[0, 0, :, 0].tolist()
    return found


@pytest.mark.parametrize("kind", HELD)
def test_a_checkpoint_holds_no_longer_array(kind: str) -> None:
    """It holds what the window or the state has, and ``nbytes`` says it."""
    make, rows = HELD[kind]
    before, cache = memory(), [make()]
    for layer in leaves(cache):
        append(layer, range(16 * PART))
    checkpoint = Checkpoint(cache)
    del cache, layer
    held, said, most = memory() - before, checkpoint.nbytes, 4 * WIDTH * rows
    assert about(held) == said <= most, f"{kind}: a checkpoint holds {held} bytes, says {said}, and needs {most}"


def ask(stored: LRUPromptCache, text: list[int]) -> int:
    """Read what is not cached of a text in parts, with a checkpoint behind each. Returns how many tokens are found."""
    cache, rest = stored.fetch_nearest_cache("model", text)
    n = found = len(text) - len(rest)
    cache, taken = cache or [HELD[kind][0]() for kind in ("kv", "rotating", "arrays")], {}
    while n < len(text):
        part = text[n : n + PART]
        n += len(part)
        right = text[:n], text[max(n - len(part) - PART + 1, 0) : n], [sum(text[:n])]
        for layer, wanted in zip(cache, right, strict=True):
            seen, name = append(layer, part)[:n], type(layer).__name__
            assert seen == wanted, f"behind {found} tokens that were found, the {name} of {n} tokens differs"
        if n < len(text):
            taken[n] = Checkpoint(cache)
    stored.insert_cache("model", text, cache, checkpoints=taken)
    return found


@pytest.mark.parametrize("limit", [1 << 63, 4 << 20, 1 << 20, 1 << 18])
def test_memory_stays_below_its_limit(limit: int) -> None:
    """Over requests that share their beginnings, the bytes are what is really held, and what comes back is right."""
    stored, before = LRUPromptCache(4, limit, max_checkpoints=MOST), memory()
    rng, texts = random.Random(0), [list(range(4 * PART))]
    for i in range(40):
        text, new = rng.choice(texts[-4:]), range(1000 * i, 1000 * i + PART * rng.randrange(1, 4))
        texts.append([*text[: PART * rng.randrange(len(text) // PART + 1)], *new])
        ask(stored, texts[-1])
        held, said = memory() - before, stored.nbytes
        assert about(held) == said <= limit, f"{held} bytes are held of {limit}, and {said} are counted"


def test_checkpoints_go_before_a_sequence() -> None:
    stored, text = LRUPromptCache(max_checkpoints=MOST), list(range(5 * PART))
    ask(stored, text)
    found = []
    while len(stored):
        found.append(len(text) - len(stored.fetch_nearest_cache("model", [*text[:-1], 1])[1]))
        nbytes = stored.nbytes
        stored.trim_to(n_bytes=nbytes - 1)
        assert stored.nbytes < nbytes
    assert (found[0], found[-1], len(found), stored.nbytes) == (4 * PART, 0, MOST + 1, 0)
    assert found == sorted(found, reverse=True)
