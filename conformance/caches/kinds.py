"""Every kind of prompt cache: how it is made, and what the last of a list of tokens sees in each of its layers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlx_lm.models import cache as cache_module

from conformance.caches import layers
from conformance.caches.reference import Reference, View, chunk, everything, window

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
    # Whether any tree can drop tokens from it.
    drops: bool = True

    @property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(re.findall(r"[A-Z]\w*", self.code)))

    def reference(self, size: int, padding: list[int]) -> Reference:
        return Reference([view(size) for view in self.views], list(padding))


def whole(_: int) -> View:
    return everything


def last_two(_: int) -> View:
    return window(2)


def kept(size: int) -> View:
    return window(size, keep=2)


KINDS = {
    "KVCache": Kind("[KVCache()]", (whole,)),
    "QuantizedKVCache": Kind("[QuantizedKVCache(group_size=32, bits=8)]", (whole,)),
    "quantized on the way": Kind("[KVCache(), KVCache()]", (whole, whole)),
    "ConcatenateKVCache": Kind("[ConcatenateKVCache()]", (whole,)),
    "RotatingKVCache": Kind("[RotatingKVCache({size})]", (window,)),
    "RotatingKVCache with keep": Kind("[RotatingKVCache({size}, keep=2)]", (kept,)),
    "ChunkedKVCache": Kind("[ChunkedKVCache({size})]", (chunk,)),
    "ArraysCache": Kind("[ArraysCache(2)]", (last_two, whole)),
    "LayerCache": Kind("[LayerCache({size})]", (window, whole), drops=False),
    "CacheList": Kind("[CacheList(KVCache(), RotatingKVCache({size}))]", (whole, window)),
    "CacheList with ArraysCache": Kind("[CacheList(ArraysCache(2), KVCache())]", (last_two, whole, whole)),
    "CatchUpCache": Kind("[CatchUpCache(KVCache(), KVCache())]", (whole, whole)),
    "several caches": Kind(
        "[ArraysCache(2), CacheList(KVCache(), RotatingKVCache({size}))]", (last_two, whole, whole, window)
    ),
    "BatchKVCache": Kind("[BatchKVCache({padding})]", (whole,), "KVCache"),
    "BatchRotatingKVCache": Kind("[BatchRotatingKVCache({size}, {padding})]", (window,), "RotatingKVCache"),
    "ArraysCache of a batch": Kind("[ArraysCache(2, left_padding={padding})]", (last_two, whole), "ArraysCache"),
    "CacheList of a batch": Kind(
        "[CacheList(ArraysCache(2, left_padding={padding}), BatchKVCache({padding}))]",
        (last_two, whole, whole),
        "CacheList with ArraysCache",
    ),
}
BATCHES = {name: kind for name, kind in KINDS.items() if kind.single}


# What looks like the cache of a layer, and what it is.
OTHERS = {
    "BlockState": "a state of ArraysCache",
    "SteppedKeys": "the keys that RotatingKVCache gives of a draft",
    "TokenBuffer": "the tokens of a request",
    "LRUPromptCache": "the caches of prompts",
}
# A class with one of these methods may be a cache, whatever its name is.
METHODS = {"is_trimmable", "update_and_fetch", "make_mask"}


def unknown_classes(models: Path) -> list[str]:
    """Every class that may be the cache of a layer, or a part of one, and is in no row of ``KINDS`` and ``OTHERS``.

    The source is read: some files end the process if a package is missing. A name with an underscore is a base class.
    """
    known, found = {name for kind in KINDS.values() for name in kind.classes} | {*OTHERS}, []
    for path in sorted(models.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in known:
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                bases = [*map(ast.unparse, node.bases)]
                if (
                    METHODS & methods
                    or "mx.array" in bases
                    or any(one.endswith("Cache") for one in [node.name, *bases])
                ):
                    found.append(f"{node.name} of models/{path.name}")
    return found
