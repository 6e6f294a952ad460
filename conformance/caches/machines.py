"""Random programs on prompt caches. Each step is compared with a reference.

Each token is a different number, and its keys and values encode that number. So a query sees a set of tokens through
the mask, and the reference says which set is right. Also, a restored cache must answer bit for bit as it did at
the time of the snapshot.
"""

from __future__ import annotations

import copy
import os
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
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    restore_prompt_cache,
    snapshot_prompt_cache,
    trim_prompt_cache,
)

from conformance.caches.layer_io import LONGEST, WIDTH, compare, feed, leaves, metadata
from conformance.caches.reference import Block
from conformance.caches.worlds import KINDS, Taken, World, copied

COMMON: dict[str, Any] = {"stateful_step_count": 25, "deadline": None, "database": None, "report_multiple_bugs": False}
# Shrinking a failing program takes minutes, so only the full profile does it.
settings.register_profile("quick", max_examples=25, derandomize=True, phases=[Phase.generate], **COMMON)
settings.register_profile("full", max_examples=2000, suppress_health_check=list(HealthCheck), **COMMON)
PROFILE = settings.get_profile(os.environ.get("CONFORMANCE_PROFILE", "quick"))

# Small, so that a program of a few blocks makes a cache grow.
STEP = 4
STEPPING = (KVCache, QuantizedKVCache, ChunkedKVCache, BatchKVCache, RotatingKVCache, BatchRotatingKVCache)
# These hold every row, so they can drop any number of tokens.
WHOLE = (KVCache, QuantizedKVCache, ConcatenateKVCache, BatchKVCache)
SNAPSHOTS = 4


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in STEPPING:
        monkeypatch.setattr(cls, "step", STEP)


def refusal(caches: list[Any], snapshot: Any) -> str:
    """Restore caches. Returns the error message, or an empty string on success."""
    try:
        restore_prompt_cache(caches, snapshot)
    except ValueError as error:
        return str(error)
    return ""


class CacheMachine(RuleBasedStateMachine):
    """The operations on a cache of one sequence."""

    kind: str
    batched = False

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
    def sizes(self) -> list[int]:
        """How many tokens each sequence holds."""
        return self.world.references[0].sizes

    @property
    def limits(self) -> list[int]:
        """The most tokens that each sequence can drop. Only recurrent layers count padding."""
        reference = self.world.references[0]
        alone = all(isinstance(cache, ArraysCache) for cache in leaves(self.world.caches))
        return [len(tokens) for tokens in reference.tokens] if alone else self.sizes

    @property
    def recurrent(self) -> bool:
        return any(isinstance(cache, ArraysCache) for cache in leaves(self.world.caches))

    @property
    def whole(self) -> bool:
        return all(isinstance(cache, WHOLE) for cache in leaves(self.world.caches))

    def block(self, length: int, of: World | None = None) -> Block:
        """New tokens that were never fed, so that a row that should be gone cannot look like another row."""
        batch = len((of or self.world).references[0].tokens)
        self.fresh += length * batch
        return [[self.fresh - length * i - t for t in range(length)] for i in range(batch)]

    def feed(self, world: World, block: Block) -> Any:
        answers = []
        for cache, reference in zip(leaves(world.caches), world.references, strict=True):
            front = getattr(cache, "start_position", 0)
            answer, seen = feed(cache, block)
            if getattr(cache, "start_position", 0) != front:
                # The ring moved its rows.
                world.cut(cache)
            expected = reference.feed(block)
            # The view of padding does not matter.
            for tokens, right in zip(seen, expected, strict=bool(seen)):
                assert [s for s, r in zip(tokens, right, strict=True) if r] == [r for r in right if r]
            compare(cache, reference)
            answers.append((answer, metadata(cache)))
        return answers

    def probe(self, of: World | None = None) -> str:
        """Compare with the references now and after a block. Returns everything that a layer can see."""
        of = of or self.world
        world = World(of.caches, of.references)
        for cache, reference in zip(leaves(world.caches), world.references, strict=True):
            compare(cache, reference)
        answers: list[Any] = [metadata(cache) for cache in leaves(world.caches)]
        batch = len(world.references[0].tokens)
        # A rotating cache does not accept single tokens while prompts are padded.
        for length, drafted in ((2, False), (5, False)) if self.pending else ((1, False), (4, False), (4, True)):
            block = [[10**6 + 10 * i + t for t in range(length)] for i in range(batch)]
            copies = copy.deepcopy(world)
            for cache in leaves(copies.caches):
                if isinstance(cache, RotatingKVCache | BatchRotatingKVCache):
                    # A window of its own forgets a snapshot.
                    cache.state = cache.state
            if drafted:
                snapshot_prompt_cache(copies.caches)
            answers.append(self.feed(copies, block))
        return str(answers)

    def feed_block(self, block: Block) -> None:
        """Feed the caches. Right after it, they can drop the end of a block with a draft."""
        self.feed(self.world, block)
        length, trims = len(block[0]), self.kind != "layer" and not self.pending
        self.world.droppable = min(length - 1, *self.sizes) if trims else 0
        for cache in leaves(self.world.caches):
            if isinstance(cache, ArraysCache) and length == 1:
                # It keeps nothing besides its states.
                assert all(type(state) is mx.array for state in cache.cache)

    # Rules

    @rule(length=st.integers(1, LONGEST), drafted=st.booleans())
    def update(self, length: int, drafted: bool) -> None:
        if self.pending:
            length = self.part_of_prompt(length)
        if length > 0:
            if drafted:
                snapshot_prompt_cache(self.world.caches)
            self.feed_block(self.block(length))

    @rule()
    def read(self) -> None:
        """Reading the state changes nothing: every snapshot can be restored as before."""
        before = self.probe()
        mx.eval([cache.state for cache in self.world.caches])
        assert self.probe() == before

    @precondition(lambda self: not self.pending)
    @rule(n=st.integers(2, LONGEST))
    def step(self, n: int) -> None:
        """Feed single tokens. They rotate a ring, and a block may follow at any point."""
        for _ in range(n):
            self.feed_block(self.block(1))
            self.feed(copy.deepcopy(self.world), self.block(3))
        self.world.droppable = 0

    def part_of_prompt(self, length: int) -> int:
        """The length of the next part of a prompt: not one token, and not past the longest prompt."""
        left = max(self.world.references[0].lengths or [0])
        length = max(length, 2)
        return left if length > left - 2 else length

    @precondition(lambda self: len(self.world.snapshots) < SNAPSHOTS)
    @rule()
    def snapshot(self) -> None:
        before, references = self.probe(), copy.deepcopy(self.world.references)
        taken = Taken(snapshot_prompt_cache(self.world.caches), references, before, self.world.rows())
        self.world.snapshots.append(taken)
        assert self.probe() == before

    @precondition(lambda self: self.world.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.go_back(data.draw(st.sampled_from(self.world.snapshots)))

    def go_back(self, taken: Taken) -> None:
        before = self.probe()
        said = refusal(self.world.caches, taken.snapshot)
        assert bool(said) == bool(taken.cut)
        if said:
            assert any(f"{type(cache).__name__} was cut below the snapshot" in said for cache in taken.cut)
            assert self.probe() == before
            return
        for cache, rows in taken.rows:
            self.world.cut(cache, rows)
        self.world.references, self.world.droppable = copy.deepcopy(taken.references), 0
        assert self.probe() == taken.answers

    @precondition(lambda self: not self.pending and len(self.world.snapshots) < SNAPSHOTS - 1)
    @rule(length=st.integers(1, 4))
    def go_back_twice(self, length: int) -> None:
        """A snapshot is refused once other tokens took the place of those that it holds."""
        self.snapshot()
        self.update(length, drafted=False)
        self.snapshot()
        first, second = self.world.snapshots[-2:]
        self.go_back(first)
        self.update(length, drafted=False)
        self.go_back(second)

    @precondition(lambda self: self.world.snapshots)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.world.snapshots.pop(data.draw(st.integers(0, len(self.world.snapshots) - 1)))

    @precondition(lambda self: not self.pending)
    @rule(n=st.integers(0, LONGEST + 2))
    def trim(self, n: int) -> None:
        shortest = min(self.limits)
        possible = can_trim_prompt_cache(self.world.caches, n)
        assert possible or n > self.world.droppable
        if n <= shortest and (self.whole or can_trim_prompt_cache(self.world.caches)):
            assert possible
        if not possible:
            self.too_many(n)
            return
        assert n <= shortest
        assert trim_prompt_cache(self.world.caches, n) == n
        self.drop(n)
        # Any trim, even of no tokens, ends the rollback of recurrent layers.
        assert not any(isinstance(cache, ArraysCache) and cache.can_trim(1) for cache in leaves(self.world.caches))

    @precondition(lambda self: not self.pending)
    @rule(kept=st.integers(2, 5), n=st.integers(1, 4))
    def reject(self, kept: int, n: int) -> None:
        """A trimmed cache looks exactly like a cache that was never fed the end of the block."""
        spared, block = copy.deepcopy(self.world), self.block(kept + n)
        snapshot_prompt_cache(self.world.caches)
        self.feed_block(block)
        if not can_trim_prompt_cache(self.world.caches, n):
            assert self.kind == "layer" or n > self.world.droppable
            self.world.droppable = 0
            return
        assert trim_prompt_cache(self.world.caches, n) == n
        self.drop(n)
        snapshot_prompt_cache(spared.caches)
        self.feed(spared, [tokens[:kept] for tokens in block])
        assert self.probe() == self.probe(spared)

    # A chunk that dropped its front does not bring it back.
    @precondition(lambda self: not self.pending and self.kind != "chunked")
    @rule(length=st.integers(1, LONGEST))
    def take_back(self, length: int) -> None:
        """After a block was fed and dropped as a whole, a snapshot from before it is as good as it was."""
        snapshot, before = snapshot_prompt_cache(self.world.caches), self.probe()
        references = copy.deepcopy(self.world.references)
        self.feed_block(self.block(length))
        if can_trim_prompt_cache(self.world.caches, length):
            assert trim_prompt_cache(self.world.caches, length) == length
        assert not refusal(self.world.caches, snapshot)
        self.world.references, self.world.droppable = references, 0
        assert self.probe() == before

    def too_many(self, n: int) -> None:
        """A cache that can be trimmed by any number drops all that it has, as in upstream. Others refuse."""
        if not can_trim_prompt_cache(self.world.caches):
            self.refused(n)
            return
        world = copy.deepcopy(self.world)
        dropped = trim_prompt_cache(world.caches, n)
        # Padding counts, as a batch drops columns.
        held = min(len(tokens) for reference in world.references for tokens in reference.tokens)
        if not self.batched:
            assert dropped == held
        if dropped <= held:
            for reference in world.references:
                reference.drop(dropped)
            self.probe(world)

    def refused(self, n: int | list[int]) -> None:
        """Trimming too far drops nothing, and a cache that is asked raises an error that names it."""
        before = self.probe()
        assert trim_prompt_cache(self.world.caches, n) == 0
        for cache in self.world.caches:
            clamps = not isinstance(n, list) and n > 0 and cache.is_trimmable()
            if not (clamps or can_trim_prompt_cache([cache], n)):
                with pytest.raises((ValueError, AttributeError), match=type(cache).__name__):
                    cache.trim(n)
        assert self.probe() == before

    def drop(self, n: int) -> None:
        for reference in self.world.references:
            reference.drop(n)
        for cache, rows in self.world.rows():
            self.world.cut(cache, rows)
        # A window that is trimmed by nothing keeps no more of the last block, as after the last block of an answer.
        has_window = any(isinstance(c, RotatingKVCache | BatchRotatingKVCache) for c in leaves(self.world.caches))
        forgets = self.recurrent or (has_window and n == 0)
        self.world.droppable = 0 if forgets else max(0, self.world.droppable - n)
        self.probe()

    @rule(n=st.sampled_from([-1, 10**6]))
    def trim_nonsense(self, n: int) -> None:
        if n < 0:
            self.refused(n)
        elif not self.pending:
            self.too_many(n)

    @rule()
    def fork(self) -> None:
        """Go on with a copy of a cache, as the server does."""
        self.other = copied(self.world)
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
        """A snapshot puts back an entry that was replaced since."""
        original = self.world.caches[i]
        if isinstance(original, KVCache):
            snapshot = snapshot_prompt_cache(self.world.caches)
            quantized = self.world.caches[i] = original.to_quantized(group_size=WIDTH, bits=8)
            self.probe()
            restore_prompt_cache(self.world.caches, snapshot)
            assert self.world.caches[i] is original
            self.world.caches[i] = quantized


def run(machine: type[CacheMachine], kind: str, profile: settings = PROFILE) -> None:
    run_state_machine_as_test(type(machine.__name__, (machine,), {"kind": kind}), settings=profile)
