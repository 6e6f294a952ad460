"""A program on a cache as lines that run with mlx-lm alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from conformance.adapters import Adapters
from conformance.testing.caches.layer_io import WIDTH

if TYPE_CHECKING:
    from conformance.judging.programs import Kind

HEAD = """\
from __future__ import annotations
import copy
from typing import Any
import mlx.core as mx
from mlx_lm.models.cache import *
"""
FEED = """
def feed(*tokens):
    rows = mx.broadcast_to(mx.array(tokens, mx.float32)[:, None], (batch, 1, len(tokens), {width}))
    for cache in getattr(caches[0], "caches", caches):
        mask = {mask}
        print(tokens, "see", cache.update_and_fetch(rows, rows)[0], mask, "offset", cache.offset)

"""
MASK = "cache.make_mask(len(tokens), return_array=True, window_size=None)"
CALLS = {"snapshot": "taken = snapshot(caches)", "restore": "restore(caches, taken)"}


def lines(kind: Kind, played: Sequence[tuple[str, int]], adapter: Adapters, seen: str) -> str:
    called = dict.fromkeys(name for name, _ in played if name in ("snapshot", "restore", "trim"))
    classes = dict.fromkeys(name for name in kind.classes if name not in ("CacheList", "ConcatenateKVCache"))
    steps = [*(f"{name}.step = 4" for name in classes), f"caches = [{kind.code}]"]
    token, batch = 0, len(kind.left)
    for name, n in played:
        if name == "feed":
            steps.append(f"feed({', '.join(str(token + 1 + t) for t in range(n))})")
            token += n
        elif name == "filter":
            steps.append(f"caches[0].filter([{n}]); batch = 1")
        else:
            steps.append(CALLS.get(name, f'print("trim returns", trim(caches, {n}))'))
    steps[-1] += f"  # {seen}"
    # As llama4 does it, whose mask says what a query sees.
    mask = "cache.maybe_trim_front()" if "Chunked" in kind.code else MASK
    feed = FEED.format(width=WIDTH, mask=mask)
    return "\n".join(
        [HEAD, *(defined(name, getattr(adapter, name)) for name in called), feed, f"batch = {batch}", *steps]
    )


def defined(name: str, function: Callable[..., Any]) -> str:
    """An adapter may give a function of the tree a name, or have one of its own."""
    if function.__module__.startswith("mlx_lm."):
        return f"from {function.__module__} import {function.__name__} as {name}"
    return inspect.getsource(function)
