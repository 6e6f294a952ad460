"""Random programs on prompt caches, each step compared with a reference: what the machines of the tests share.

A token is a number of its own, and its keys and values encode it. So what a query sees of a cache, through the mask, is
a set of tokens, and the reference says which. Beside that a restored cache must answer bit for bit as it did when the
snapshot was taken.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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

from conformance.feeding import LONGEST, WIDTH, compare, feed, leaves, lost_to_the_mask, metadata
from conformance.reference import Block, Grouped, Recurrent, Reference, View, chunk, everything, window
from conformance.tally import TALLY

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
    batched = False

    def __init__(self) -> None:
        super().__init__()
        self.other: World | None = None
        self.fresh = 0

    @initialize(size=st.integers(5, 9), data=st.data())
    def start(self, size: int, data: st.DataObject) -> None:
        TALLY["examples"] += 1
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

    def block(self, length: int, of: World | None = None) -> Block:
        """Tokens that were never fed before, so that a row that should be gone is not mistaken for another."""
        batch = len((of or self.world).references[0].tokens)
        self.fresh += length * batch
        return [[self.fresh - length * i - t for t in range(length)] for i in range(batch)]

    def feed(self, world: World, block: Block) -> Any:
        answers = []
        for cache, reference in zip(leaves(world.caches), world.references, strict=True):
            lost = lost_to_the_mask(cache, block)
            answer, seen = feed(cache, block)
            expected = reference.feed(block)
            # What padding sees does not matter.
            for tokens, right, gone in zip(seen, expected, lost, strict=bool(seen)):
                visible = [[token for token in r if token not in gone] for r in right if r]
                assert [s for s, r in zip(tokens, right, strict=True) if r] == visible
            compare(cache, reference)
            answers.append((answer, metadata(cache)))
        return answers

    def probe(self, of: World | None = None) -> str:
        """Compare with the references now and after a block. Return everything that a layer could see."""
        of = of or self.world
        world = World(of.caches, of.references)
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

    @precondition(lambda self: not self.pending)
    @rule(n=st.integers(2, LONGEST))
    def step(self, n: int) -> None:
        """Single tokens: a ring rotates, at any of which a block may follow."""
        for _ in range(n):
            self.feed(self.world, self.block(1))
            self.feed(copy.deepcopy(self.world), self.block(3))
        self.world.droppable = 0

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
        if self.recurrent:
            # Entries that come back after a split were told nothing since.
            record_prompt_cache(self.world.caches, self.world.recording)
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
        if n > shortest and self.batched:
            # A batch counts the padding of its shorter sequences.
            return
        if not possible:
            self.refused(n)
            return
        assert n <= shortest
        rewind_prompt_cache(self.world.caches, n)
        self.drop(n)

    @precondition(lambda self: not self.pending)
    @rule(kept=st.integers(2, 5), n=st.integers(1, 4))
    def reject(self, kept: int, n: int) -> None:
        """A cache that rewinds is, to all that can be seen, one that was never fed the end of the block."""
        if self.recurrent and not self.world.recording:
            return
        spared, block = copy.deepcopy(self.world), self.block(kept + n)
        self.feed(self.world, block)
        if not can_rewind_prompt_cache(self.world.caches, n):
            assert self.kind == "layer"
            self.world.droppable = 0
            return
        rewind_prompt_cache(self.world.caches, n)
        self.world.droppable = kept + n - 1
        self.drop(n)
        self.feed(spared, [tokens[:kept] for tokens in block])
        assert self.probe() == self.probe(spared)

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


def run(machine: type[CacheMachine], kind: str, profile: settings = PROFILE) -> None:
    run_state_machine_as_test(type(machine.__name__, (machine,), {"kind": kind}), settings=profile)
