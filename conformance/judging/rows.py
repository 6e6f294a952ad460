"""C1 of what a recurrent cache knows of the rows of a batch: how much of each is padding, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapter
from conformance.judging.caches import SNAPSHOT
from conformance.judging.cases import Broken, Case, attribute
from conformance.judging.lines import FUTURE
from conformance.judging.states import offered
from conformance.judging.written import written

KIND = "ArraysCache"
# Tokens that are fed before the snapshot and after it, and the block whose mask is compared.
BEFORE, AFTER, BLOCK = (0, 1, 3), (1, 4), 6
MADE = "ArraysCache(1, left_padding=[0, 2])"
LENGTHS = [9, 5]
LINES = (
    FUTURE
    + """\
import mlx.core as mx
from mlx_lm.models.cache import ArraysCache
{functions}
cache = {made}
cache.prepare(lengths={lengths})
cache[0] = mx.zeros((2, 1))
caches = [cache]
cache.advance({before})
taken = snapshot(caches)
print(caches[0].make_mask({block}))
caches[0].advance({after})
restore(caches, taken)
print(caches[0].make_mask({block}))  # {seen}
"""
)


def made() -> Any:
    """A batch of two rows, the second one padded on both sides."""
    cache = attribute(cache_module, KIND)(1, left_padding=[0, 2])
    cache.prepare(lengths=LENGTHS)
    cache[0] = mx.zeros((2, 1))
    return cache


def mask_of(caches: list[Any]) -> Any:
    mask = caches[0].make_mask(BLOCK)
    return None if mask is None else mask.tolist()


def snapshots(adapter: Adapter) -> None:
    offered(adapter, "snapshot", "restore")
    for before in BEFORE:
        for after in AFTER:
            caches = [made()]
            caches[0].advance(before)
            right = mask_of(caches)
            taken = adapter.snapshot(caches)
            for _ in range(2):
                caches[0].advance(after)
                adapter.restore(caches, taken)
                if mask_of(caches) != right:
                    seen = f"{before} tokens, a snapshot, {after} more: the mask of what follows is another one"
                    functions = written(*adapter.functions("snapshot", "restore"))
                    about = {"before": before, "after": after, "block": BLOCK, "made": MADE, "lengths": LENGTHS}
                    raise Broken(seen, LINES.format(functions=functions, seen=seen, **about))


def cases(adapter: Adapter) -> Iterator[Case]:
    yield Case(SNAPSHOT, f"the rows of {KIND}", partial(snapshots, adapter))
