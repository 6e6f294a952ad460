"""What a program on prompt caches works on: the caches, a reference for each, and the snapshots that were taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models import cache as models_cache
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.caches.layer_io import WIDTH, leaves
from conformance.caches.reference import Grouped, Recurrent, Reference, View, chunk, everything, window

# A snapshot of these is only a number of rows. If a row below it is overwritten, it cannot be restored.
GROWING = (KVCache, QuantizedKVCache, BatchKVCache)


@dataclass
class Taken:
    """A snapshot, with the references and the answers of the caches at that time."""

    snapshot: Any
    references: list[Reference]
    answers: str
    # Each growing cache with where its sequences end, -1 before it was fed. Then the caches that lost some rows since.
    rows: list[tuple[Any, list[int]]]
    cut: list[Any] = field(default_factory=list)


@dataclass
class World:
    """The caches of a model, one reference for each leaf cache, and the snapshots."""

    caches: list[Any]
    references: list[Reference]
    snapshots: list[Taken] = field(default_factory=list)
    # The caches must be able to drop this many tokens from the end of the last block.
    droppable: int = 0

    def rows(self) -> list[tuple[Any, list[int]]]:
        return [
            (cache, [-1 if cache.empty() else len(tokens) for tokens in reference.tokens])
            for cache, reference in zip(leaves(self.caches), self.references, strict=True)
            if isinstance(cache, GROWING)
        ]

    def cut(self, cache: Any, ends: list[int] | None = None) -> None:
        """Note that a cache may overwrite what is behind these ends of its sequences, or all that it holds."""
        for taken in self.snapshots:
            for one, held in taken.rows:
                least = ends or [-1] * len(held)
                # After another number of rows, what was held is cut already, or was nothing.
                if one is cache and any(h > end for h, end in zip(held, least, strict=False)):
                    taken.cut.append(one)

    def cut_all(self) -> None:
        for cache in leaves(self.caches):
            self.cut(cache)


def copied(world: World) -> World:
    """A copy that can be trimmed as far. A deep copy of a recurrent cache keeps nothing to drop the end of a block."""
    other = copy.deepcopy(world)
    for cache, twin in zip(leaves(world.caches), leaves(other.caches), strict=True):
        if isinstance(cache, ArraysCache):
            twin.cache = list(cache.cache)
    return other


def rows(view: View = everything, batch: int = 1) -> Reference:
    return Reference(view, [[] for _ in range(batch)], [0] * batch)


def state(batch: int = 1) -> Recurrent:
    return Recurrent(everything, [[] for _ in range(batch)], [0] * batch)


KINDS: dict[str, Callable[[int], World]] = {
    "kv": lambda _: World([KVCache()], [rows()]),
    "quantized": lambda _: World([QuantizedKVCache(group_size=WIDTH, bits=8)], [rows()]),
    "concatenate": lambda _: World([ConcatenateKVCache()], [rows()]),
    "rotating": lambda size: World([RotatingKVCache(size)], [rows(window(size))]),
    "rotating keep": lambda size: World([RotatingKVCache(size, keep=2)], [rows(window(size, keep=2))]),
    "chunked": lambda size: World([ChunkedKVCache(size)], [rows(chunk(size))]),
    "arrays": lambda _: World([ArraysCache(2)], [state()]),
    "list of kv and rotating": lambda size: World(
        [CacheList(KVCache(), RotatingKVCache(size))], [rows(), rows(window(size))]
    ),
    "list of arrays and kv": lambda _: World([CacheList(ArraysCache(2), KVCache())], [state(), rows()]),
    "layer": lambda size: World([LayerCache(size)], [Grouped(window(size), [[]], [0])]),
    "mixed": lambda size: World(
        [ArraysCache(2), CacheList(KVCache(), RotatingKVCache(size))], [state(), rows(), rows(window(size))]
    ),
    "quantized on the way": lambda _: World([KVCache(), KVCache()], [rows(), rows()]),
}
# Of the heads, which are the last stage.
if hasattr(models_cache, "CatchUpCache"):
    KINDS["catching up"] = lambda _: World([models_cache.CatchUpCache(KVCache(), KVCache())], [rows(), rows()])
