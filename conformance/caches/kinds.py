"""Every kind of prompt cache: how it is made, and what the last of a list of tokens sees in each of its layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mlx_lm.models import cache as cache_module

from conformance.caches import layers
from conformance.caches.reference import Reference, View, chunk, everything, kept, last_two, window

# What the lines of a program may use.
NAMES = {**vars(cache_module), **vars(layers)}


@dataclass(frozen=True)
class Kind:
    # The list of caches, where ``size`` is that of a window and ``padding`` that of each row on the left.
    code: str
    # For each layer, what a token sees, by the size of a window.
    views: tuple[Callable[[int], View], ...]
    # Of a batch, the kind of a sequence that may join it.
    single: str = ""

    @property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(re.findall(r"[A-Z]\w*", self.code)))

    def reference(self, size: int, padding: list[int]) -> Reference:
        return Reference([view(size) for view in self.views], list(padding))


KINDS = {
    "KVCache": Kind("[KVCache()]", (everything,)),
    "QuantizedKVCache": Kind("[QuantizedKVCache(group_size=32, bits=8)]", (everything,)),
    "quantized on the way": Kind("[KVCache(), KVCache()]", (everything, everything)),
    "ConcatenateKVCache": Kind("[ConcatenateKVCache()]", (everything,)),
    "RotatingKVCache": Kind("[RotatingKVCache({size})]", (window,)),
    "RotatingKVCache with keep": Kind("[RotatingKVCache({size}, keep=2)]", (kept,)),
    "ChunkedKVCache": Kind("[ChunkedKVCache({size})]", (chunk,)),
    "ArraysCache": Kind("[ArraysCache(2)]", (last_two, everything)),
    "CacheList": Kind("[CacheList(KVCache(), RotatingKVCache({size}))]", (everything, window)),
    "CacheList with ArraysCache": Kind("[CacheList(ArraysCache(2), KVCache())]", (last_two, everything, everything)),
    "several caches": Kind(
        "[ArraysCache(2), CacheList(KVCache(), RotatingKVCache({size}))]", (last_two, everything, everything, window)
    ),
    "BatchKVCache": Kind("[BatchKVCache({padding})]", (everything,), "KVCache"),
    "BatchRotatingKVCache": Kind("[BatchRotatingKVCache({size}, {padding})]", (window,), "RotatingKVCache"),
    "ArraysCache of a batch": Kind("[ArraysCache(2, left_padding={padding})]", (last_two, everything), "ArraysCache"),
    "CacheList of a batch": Kind(
        "[CacheList(ArraysCache(2, left_padding={padding}), BatchKVCache({padding}))]",
        (last_two, everything, everything),
        "CacheList with ArraysCache",
    ),
}
BATCHES = {name: kind for name, kind in KINDS.items() if kind.single}
