"""Random programs on every prompt cache, each step compared with a reference: pytest conformance/test_cache_machines.py

A token is a number of its own, and its keys and values encode it. So what a query sees of a cache, through the mask, is
a set of tokens, and the reference says which. Beside that a restored cache must answer bit for bit as it did when the
snapshot was taken.

CONFORMANCE_PROFILE=full runs 2000 programs for each cache.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    can_rewind_prompt_cache,
    can_trim_prompt_cache,
    record_prompt_cache,
    restore_prompt_cache,
    rewind_prompt_cache,
    snapshot_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.feeding import LONGEST, WIDTH, compare, feed, leaves, metadata
from conformance.reference import Block, Grouped, Recurrent, Reference, View, chunk, everything, window

COMMON: dict[str, Any] = {"stateful_step_count": 25, "deadline": None, "database": None, "report_multiple_bugs": False}
# To shorten a program that fails takes minutes: the full profile does it.
settings.register_profile("quick", max_examples=40, derandomize=True, phases=[Phase.generate], **COMMON)
settings.register_profile("full", max_examples=2000, suppress_health_check=list(HealthCheck), **COMMON)
PROFILE = settings.get_profile(os.environ.get("CONFORMANCE_PROFILE", "quick"))

# Small, so that a program of a few blocks crosses it.
STEP = 4
STEPPING = (KVCache, QuantizedKVCache, ChunkedKVCache, BatchKVCache, RotatingKVCache, BatchRotatingKVCache)
# These hold every row, so any number of tokens can be dropped.
WHOLE = (KVCache, QuantizedKVCache, ConcatenateKVCache, BatchKVCache)
SNAPSHOTS = 4


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in STEPPING:
        monkeypatch.setattr(cls, "step", STEP)


@dataclass
class World:
    """The caches of a model, one reference for each leaf of them, and the snapshots that are alive."""

    caches: list[Any]
    references: list[Reference]
    # Each with its references and what the caches answered.
    snapshots: list[tuple[Any, list[Reference], str]] = field(default_factory=list)
    # So many tokens, the end of the last block, it must be possible to drop.
    droppable: int = 0
    # Whether recurrent layers were told to keep the inputs of a block.
    recording: bool = False


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
        [KVCache(), ArraysCache(2), RotatingKVCache(size)], [rows(), state(), rows(window(size))]
    ),
    "quantized on the way": lambda _: World([KVCache(), KVCache()], [rows(), rows()]),
}


class CacheMachine(RuleBasedStateMachine):
    """What a single sequence goes through."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.other: World | None = None
        self.fresh = 0

    @initialize(size=st.integers(5, 9), data=st.data())
    def start(self, size: int, data: st.DataObject) -> None:
        self.world = self.first(size, data)
        self.probe()

    def first(self, size: int, data: st.DataObject) -> World:
        world = KINDS[self.kind](size)
        assert all(cache.empty() for cache in world.caches)
        return world

    # Helpers

    @property
    def pending(self) -> bool:
        """Whether prompts with padding on the right are being fed."""
        return self.world.references[0].lengths is not None

    @property
    def recurrent(self) -> bool:
        return any(isinstance(cache, ArraysCache) for cache in leaves(self.world.caches))

    @property
    def whole(self) -> bool:
        return all(isinstance(cache, WHOLE) for cache in leaves(self.world.caches))

    def block(self, length: int) -> Block:
        """Tokens that were never fed before, so that a row that should be gone is not mistaken for another."""
        batch = len(self.world.references[0].tokens)
        self.fresh += length * batch
        return [[self.fresh - length * i - t for t in range(length)] for i in range(batch)]

    def feed(self, world: World, block: Block) -> Any:
        answers = []
        for cache, reference in zip(leaves(world.caches), world.references, strict=True):
            answer, seen = feed(cache, block)
            expected = reference.feed(block)
            # What padding sees does not matter.
            for tokens, right in zip(seen, expected, strict=bool(seen)):
                assert [s for s, r in zip(tokens, right, strict=True) if r] == [r for r in right if r]
            compare(cache, reference)
            answers.append((answer, metadata(cache)))
        return answers

    def probe(self) -> str:
        """Compare with the references now and after a block. Return everything that a layer could see."""
        world = World(self.world.caches, self.world.references)
        for cache, reference in zip(leaves(world.caches), world.references, strict=True):
            compare(cache, reference)
        answers: list[Any] = [metadata(cache) for cache in leaves(world.caches)]
        batch = len(world.references[0].tokens)
        # A rotating cache takes no single tokens while prompts are padded.
        for length in (2, 5) if self.pending else (1, 4):
            block = [[10**6 + 10 * i + t for t in range(length)] for i in range(batch)]
            answers.append(self.feed(copy.deepcopy(world), block))
        return str(answers)

    # Rules

    @rule(length=st.integers(1, LONGEST))
    def update(self, length: int) -> None:
        if self.pending:
            length = self.part_of_prompt(length)
        if length > 0:
            self.feed(self.world, self.block(length))
            rewinds = (self.world.recording or not self.recurrent) and self.kind != "layer" and not self.pending
            self.world.droppable = length - 1 if rewinds else 0

    def part_of_prompt(self, length: int) -> int:
        """No single tokens, and none behind the longest prompt."""
        left = max(self.world.references[0].lengths or [0])
        length = max(length, 2)
        return left if length > left - 2 else length

    @precondition(lambda self: len(self.world.snapshots) < SNAPSHOTS)
    @rule()
    def snapshot(self) -> None:
        before = self.probe()
        snapshot = snapshot_prompt_cache(self.world.caches)
        self.world.snapshots.append((snapshot, copy.deepcopy(self.world.references), before))
        assert self.probe() == before

    @precondition(lambda self: self.world.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        snapshot, references, before = data.draw(st.sampled_from(self.world.snapshots))
        restore_prompt_cache(self.world.caches, snapshot)
        self.world.references, self.world.droppable = copy.deepcopy(references), 0
        assert self.probe() == before

    @precondition(lambda self: self.world.snapshots)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.world.snapshots.pop(data.draw(st.integers(0, len(self.world.snapshots) - 1)))

    @precondition(lambda self: not self.pending)
    @rule(n=st.integers(1, LONGEST + 2))
    def rewind(self, n: int) -> None:
        shortest = self.world.references[0].shortest
        possible = can_rewind_prompt_cache(self.world.caches, n)
        assert possible or n > self.world.droppable
        assert possible or n > shortest or not self.whole
        if n > shortest and self.kind in BATCHES:
            # A batch counts the padding of its shorter sequences.
            return
        if not possible:
            self.refused(n)
            return
        assert n <= shortest
        rewind_prompt_cache(self.world.caches, n)
        self.drop(n)

    def refused(self, n: int) -> None:
        before = self.probe()
        with pytest.raises(ValueError, match="cannot drop"):
            rewind_prompt_cache(self.world.caches, n)
        assert self.probe() == before

    def drop(self, n: int) -> None:
        for reference in self.world.references:
            reference.drop(n)
        self.world.droppable = max(0, self.world.droppable - n)
        self.probe()

    @rule(n=st.sampled_from([-1, 10**6]))
    def rewind_nonsense(self, n: int) -> None:
        self.refused(n)

    @precondition(lambda self: not self.pending and can_trim_prompt_cache(self.world.caches))
    @rule(n=st.integers(0, LONGEST))
    def trim(self, n: int) -> None:
        if self.kind == "chunked":
            # It does not say that it lost the front of the chunk.
            n = min(n, self.world.droppable)
        n = min(n, self.world.references[0].shortest)
        assert trim_prompt_cache(self.world.caches, n) == n
        self.drop(n)

    @precondition(lambda self: self.recurrent)
    @rule(on=st.booleans())
    def record(self, on: bool) -> None:
        record_prompt_cache(self.world.caches, on)
        self.world.recording, self.world.droppable = on, 0

    @rule()
    def fork(self) -> None:
        """The server keeps a cache and goes on with a copy."""
        self.other = copy.deepcopy(self.world)
        self.probe()

    @precondition(lambda self: self.other is not None)
    @rule()
    def swap(self) -> None:
        assert self.other is not None
        self.world, self.other = self.other, self.world
        self.probe()

    @precondition(lambda self: self.kind == "quantized on the way")
    @rule(i=st.integers(0, 1))
    def quantize(self, i: int) -> None:
        if isinstance(self.world.caches[i], KVCache):
            self.world.caches[i] = self.world.caches[i].to_quantized(group_size=WIDTH, bits=8)
            self.probe()


@dataclass(frozen=True)
class Batch:
    single: Callable[[int], World]
    padded: Callable[[int, list[int]], Any]


BATCHES = {
    "batch": Batch(KINDS["kv"], lambda _, padding: BatchKVCache(padding)),
    # No BatchRotatingKVCache: next to padding, its mask hides a row from a block after the ring has rotated, and
    # upstream's own test_batch_rotating_kv_cache asks for that mask.
    "batch arrays": Batch(KINDS["arrays"], lambda _, padding: ArraysCache(2, left_padding=padding)),
    "batch list": Batch(
        KINDS["list of arrays and kv"],
        lambda _, padding: CacheList(ArraysCache(2, left_padding=padding), BatchKVCache(padding)),
    ),
}
PADDINGS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
HISTORIES = st.lists(st.lists(st.integers(1, LONGEST), max_size=3), min_size=1, max_size=3)


class BatchMachine(CacheMachine):
    """What a batch goes through as well: padding, sequences that come and go."""

    def first(self, size: int, data: st.DataObject) -> World:
        self.size = size
        if data.draw(st.booleans()):
            return self.merged([self.single(lengths) for lengths in data.draw(HISTORIES)])
        padding = data.draw(PADDINGS)
        references = BATCHES[self.kind].single(size).references
        for reference in references:
            reference.tokens, reference.left = [[] for _ in padding], list(padding)
        return World([BATCHES[self.kind].padded(size, padding)], references)

    def single(self, lengths: list[int]) -> World:
        world = BATCHES[self.kind].single(self.size)
        for length in lengths:
            self.fresh += length
            self.feed(world, [[self.fresh - t for t in range(length)]])
        return world

    def merged(self, singles: list[World]) -> World:
        first, *others = copy.deepcopy(singles)
        for other in others:
            for reference, joined in zip(first.references, other.references, strict=True):
                reference.extend(joined)
        columns = zip(*(world.caches for world in singles), strict=True)
        return World([caches[0].merge(caches) for caches in columns], first.references)

    @property
    def settled(self) -> bool:
        return not self.pending and max(self.world.references[0].padding_to_come) == 0

    def changed(self) -> None:
        self.world.droppable = 0
        self.probe()

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        batch = len(self.world.references[0].tokens)
        lengths = data.draw(st.lists(st.integers(1, LONGEST), min_size=batch, max_size=batch))
        padding = [max(lengths) - length for length in lengths]
        if max(padding) > 0:
            for cache in self.world.caches:
                cache.prepare(lengths=lengths, right_padding=padding)
            for reference in self.world.references:
                reference.prepare(lengths)
            self.changed()

    @precondition(lambda self: self.pending)
    @rule()
    def finalize(self) -> None:
        while max(self.world.references[0].lengths or [0]) > 0:
            self.update(LONGEST)
        for cache in self.world.caches:
            cache.finalize()
        for reference in self.world.references:
            reference.finalize()
        self.changed()

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        batch = len(self.world.references[0].tokens)
        keep = sorted(data.draw(st.sets(st.integers(0, batch - 1), min_size=1)))
        for cache in self.world.caches:
            cache.filter(mx.array(keep))
        for reference in self.world.references:
            reference.filter(keep)
        self.changed()

    @precondition(lambda self: self.settled and len(self.world.references[0].tokens) < 4)
    @rule(histories=HISTORIES)
    def extend(self, histories: list[list[int]]) -> None:
        other = self.merged([self.single(lengths) for lengths in histories])
        for cache, joined in zip(self.world.caches, other.caches, strict=True):
            cache.extend(joined)
        for reference, joined in zip(self.world.references, other.references, strict=True):
            reference.extend(joined)
        self.changed()

    @precondition(lambda self: self.settled and not any(cache.empty() for cache in self.world.caches))
    @rule()
    def split(self) -> None:
        """Each sequence goes its own way, then they are merged again."""
        singles = []
        for i in range(len(self.world.references[0].tokens)):
            world = World([cache.extract(i) for cache in self.world.caches], copy.deepcopy(self.world.references))
            for reference in world.references:
                reference.filter([i])
            self.feed(copy.deepcopy(world), self.block(1)[:1])
            self.feed(copy.deepcopy(world), self.block(4)[:1])
            singles.append(world)
        merged = self.merged(singles)
        self.world.caches[:], self.world.references = merged.caches, merged.references
        self.changed()


def run(kind: str, profile: settings = PROFILE) -> None:
    machine = BatchMachine if kind in BATCHES else CacheMachine
    run_state_machine_as_test(type(machine.__name__, (machine,), {"kind": kind}), settings=profile)


@pytest.mark.parametrize("kind", [*KINDS, *BATCHES])
def test_machine(kind: str) -> None:
    run(kind)
