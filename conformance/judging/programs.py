"""Short programs on each cache class, each compared with a list of tokens.

The programs are ordered by their size, so the first one that fails is a short one.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapters
from conformance.caches.layer_io import WIDTH, as_lists, feed_rows, leaves
from conformance.caches.reference import PAD, Reference, View, chunk, everything, window
from conformance.oracle.findings import broken, first_line, not_offered, not_shown, refused

# What a growing cache allocates at a time: small, so that programs cross it.
STEP = 4
# Feed so many tokens; or drop so many of the last; or take a snapshot, or go back to it.
Op = tuple[str, int]
Program = tuple[Op, ...]


@dataclass(frozen=True)
class Kind:
    """How a cache class is made, and what the last of a list of tokens sees of them."""

    name: str
    code: str
    views: tuple[View, ...]
    left: tuple[int, ...] = (0,)

    @property
    def classes(self) -> list[str]:
        return re.findall(r"[A-Z]\w*", self.code)

    @property
    def rests_on(self) -> list[str]:
        """The kinds that explain what is wrong with this one: what a list holds, and the class without an option."""
        return self.classes[1:] or [name for name in self.classes if name != self.name]

    def make(self) -> Any:
        for name in self.classes:
            if not hasattr(cache_module, name):
                not_offered(f"the tree has no {name}")
        return eval(self.code, dict(vars(cache_module)))


KINDS = [
    Kind("KVCache", "KVCache()", (everything,)),
    Kind("QuantizedKVCache", f"QuantizedKVCache(group_size={WIDTH}, bits=8)", (everything,)),
    Kind("ConcatenateKVCache", "ConcatenateKVCache()", (everything,)),
    Kind("RotatingKVCache", "RotatingKVCache(4)", (window(4),)),
    Kind("RotatingKVCache with keep", "RotatingKVCache(5, keep=2)", (window(5, 2),)),
    Kind("ChunkedKVCache", "ChunkedKVCache(4)", (chunk(4),)),
    Kind("CacheList", "CacheList(KVCache(), RotatingKVCache(4))", (everything, window(4))),
    Kind("BatchKVCache", "BatchKVCache([0, 2])", (everything,), (0, 2)),
    Kind("BatchRotatingKVCache", "BatchRotatingKVCache(4, [0, 2])", (window(4),), (0, 2)),
]
PREFIXES: list[list[int]] = [[1], [3], [4], [5], [6], [3, 1], [5, 1], [4, 1, 1], [6, 3], [9], [1] * 6, [5, 1, 1, 1]]
# What is done between a snapshot and going back to it: blocks, and tokens that are dropped of them (below zero).
UPDATES: list[list[int]] = [[1], [2], [5], [1, 1], [1, 3], [2, -1], [5, -3], [1, -1]]
PROBES: list[list[int]] = [[1, 2], [3, 1]]


def program(*parts: list[int] | str) -> Program:
    ops: list[Op] = []
    for part in parts:
        if isinstance(part, str):
            ops.append((part, 0))
        else:
            ops += [("feed", n) if n > 0 else ("trim", -n) for n in part]
    return tuple(ops)


def size(ops: Program) -> int:
    return sum(1 + n for _, n in ops)


def snapshots() -> Iterator[Program]:
    for prefix in [[], *PREFIXES]:
        for update in UPDATES:
            yield program(prefix, "snapshot", update, "restore", [1])
            for probe in PROBES:
                yield program(prefix, "snapshot", update, "restore", probe, "restore", [1, 1])
                # A cache that was gone back to is trimmed like any other.
                yield program(prefix, "snapshot", update, "restore", [2, -1], probe)


def trims() -> Iterator[Program]:
    for prefix in [[], *PREFIXES]:
        for block in (1, 2, 3, 5):
            for n in {1, 2, block - 1, block, block + 1}:
                if 0 < n <= block + sum(prefix):
                    for probe in PROBES:
                        yield program(prefix, [block, -n], probe)


def filters() -> Iterator[Program]:
    """Rows leave a batch, and the others go on."""
    for prefix in [*PREFIXES, [5, -2]]:
        for row in range(2):
            for probe in PROBES:
                yield (*program(prefix), ("filter", row), *program(probe))


def blocks() -> Iterator[Program]:
    for prefix in [[], *PREFIXES]:
        for block in (1, 2, 3, 5):
            yield program(prefix, [block], [1])
            yield program(prefix, [1, block, 2])


class Wrong(Exception):
    """What is seen and what should be."""


class Unplayed(Exception):
    """The cache says that it cannot do what the program needs."""


class Execution:
    """One program on one cache."""

    def __init__(self, kind: Kind, adapter: Adapters) -> None:
        self.kind, self.adapter = kind, adapter
        self.caches = [kind.make()]
        self.references = [Reference(view, [[] for _ in kind.left], list(kind.left)) for view in kind.views]
        self.token = 0
        self.played: list[Op] = []
        self.taken: tuple[Any, list[Reference]] | None = None

    def play(self, ops: Program) -> None:
        """Fail where the cache is not what it should be. Raises Unplayed where it refuses to go on."""
        for name, n in ops:
            self.played.append((name, n))
            getattr(self, name)(n)
            self.check_offsets()

    def feed(self, n: int) -> None:
        block = [[self.token + 1 + t + 100 * i for t in range(n)] for i in range(len(self.references[0].tokens))]
        self.token += n
        for held, reference in zip(leaves(self.caches), self.references, strict=True):
            right = reference.feed(block)
            seen = feed_rows(held, block)[1]
            for i, (row, expected) in enumerate(zip(seen, right, strict=True)):
                for t, (is_, should) in enumerate(zip(row, expected, strict=True)):
                    if should and [x for x in is_ if x != PAD] != should:
                        raise Wrong(self._sees(i, block[i][t], is_, should))

    def _sees(self, row: int, token: int, seen: list[int], right: list[int]) -> str:
        of = f" of row {row}" if len(self.kind.left) > 1 else ""
        return f"token {token}{of} sees {' '.join(map(str, seen))} instead of {' '.join(map(str, right))}"

    def check_offsets(self) -> None:
        """The offset is the position of the next token."""
        for held, reference in zip(leaves(self.caches), self.references, strict=True):
            offset = as_lists(held.offset)
            offsets = offset if isinstance(offset, list) else [offset]
            if offsets != reference.offsets:
                raise Wrong(f"offset is {offset} instead of {' '.join(map(str, reference.offsets))}")

    def filter(self, row: int) -> None:
        """Keep one row of a batch."""
        if not min(self.references[0].sizes):
            raise Unplayed("a row is padding so far")
        for held, reference in zip(leaves(self.caches), self.references, strict=True):
            held.filter([row])
            reference.filter([row])

    def trim(self, n: int) -> None:
        if not self.adapter.can_trim(self.caches, n):
            raise Unplayed("it cannot be trimmed there")
        if n > min(self.references[0].sizes):
            raise Unplayed("a row is shorter than that")
        try:
            dropped = self.adapter.trim(self.caches, n)
        except Exception as error:
            raise Wrong(f"can_trim({n}) says yes, and trim({n}) raises {first_line(error)}") from error
        if isinstance(dropped, int) and dropped != n:
            raise Wrong(f"can_trim({n}) says yes, and trim({n}) returns {dropped}")
        for reference in self.references:
            reference.drop(n)

    def snapshot(self, _: int) -> None:
        self.taken = self.adapter.snapshot(self.caches), copy.deepcopy(self.references)

    def restore(self, _: int) -> None:
        assert self.taken is not None
        self.adapter.restore(self.caches, self.taken[0])
        self.references = copy.deepcopy(self.taken[1])


def check(kind: Kind, adapter: Adapters, programs: Iterable[Program]) -> None:
    """Every program, the shortest first."""
    wanted = sorted(programs, key=size)
    names = {name for ops in wanted for name, _ in ops} & {"snapshot", "restore", "trim"}
    if lacking := sorted(name for name in names if name not in adapter):
        not_offered(f"the adapter has no {' and no '.join(lacking)}")
    kind.make()
    shown, failed = 0, []
    for ops in wanted:
        run = Execution(kind, adapter)
        try:
            run.play(ops)
            shown += 1
        except Unplayed:
            continue
        except Wrong as error:
            failed.append((run.played, str(error)))
        except NotImplementedError as error:
            refused(error)
        except Exception as error:
            failed.append((run.played, f"it raises {first_line(error)}"))
    if failed:
        played, seen = failed[0]
        said = f"{seen}, in {len(failed)} of {len(failed) + shown} programs"
        cases = {", ".join(f"{name} {n}" if n else name for name, n in ops): why for ops, why in failed}
        broken(said, lines(kind, played, adapter, seen), cases)
    if not shown:
        not_shown("it refuses every program")


@contextmanager
def small_steps() -> Iterator[None]:
    """Let the caches grow by few rows at a time, so that short programs meet every boundary."""
    with ExitStack() as stack:
        for name in {name for kind in KINDS for name in kind.classes}:
            made = getattr(cache_module, name, None)
            if made is not None and hasattr(made, "step"):
                stack.enter_context(patch.object(made, "step", STEP))
        yield


# A program as lines that run with mlx-lm alone.
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
