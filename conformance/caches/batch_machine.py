"""Random programs on a cache of several sequences. Each step is compared with lists of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    can_trim_prompt_cache,
    snapshot_prompt_cache,
    trim_prompt_cache,
)

from conformance.caches.layer_io import LONGEST
from conformance.caches.machines import CacheMachine, refusal
from conformance.caches.worlds import KINDS, World, copied


@dataclass(frozen=True)
class Batch:
    single: Callable[[int], World]
    padded: Callable[[int, list[int]], Any]


BATCHES = {
    "batch": Batch(KINDS["kv"], lambda _, padding: BatchKVCache(padding)),
    "batch rotating": Batch(KINDS["rotating"], BatchRotatingKVCache),
    "batch arrays": Batch(KINDS["arrays"], lambda _, padding: ArraysCache(2, left_padding=padding)),
    "batch list": Batch(
        KINDS["list of arrays and kv"],
        lambda _, padding: CacheList(ArraysCache(2, left_padding=padding), BatchKVCache(padding)),
    ),
}
PADDINGS = st.lists(st.integers(0, 5), min_size=1, max_size=3)
HISTORIES = st.lists(st.lists(st.integers(1, LONGEST), max_size=3), min_size=1, max_size=3)


class BatchMachine(CacheMachine):
    """Adds the operations of a batch: padding, and sequences that join and leave."""

    batched = True

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
    def started(self) -> bool:
        """Whether every sequence was fed."""
        return not self.pending and max(self.world.references[0].padding_to_come) == 0

    def changed(self) -> None:
        """After a change of the batch, a cache correctly drops as many tokens as it says it can."""
        self.world.droppable = 0
        self.probe()
        if self.pending:
            return
        for n in (1, 2):
            if can_trim_prompt_cache(self.world.caches, n):
                assert n <= min(self.limits)
                world = copied(self.world)
                trim_prompt_cache(world.caches, n)
                for reference in world.references:
                    reference.drop(n)
                self.probe(world)

    @precondition(lambda self: not self.pending)
    @rule(length=st.integers(2, LONGEST), data=st.data())
    def reject_by_row(self, length: int, data: st.DataObject) -> None:
        """Right after a block, each row drops its own number of tokens. Then it is as if they were never fed."""
        self.update(length, drafted=True)
        least = self.world.droppable
        wanted = data.draw(st.lists(st.integers(0, length), min_size=len(self.sizes), max_size=len(self.sizes)))
        possible = can_trim_prompt_cache(self.world.caches, wanted)
        assert possible or max(wanted) > least
        if not possible:
            self.refused(wanted)
            return
        assert all(n <= limit for n, limit in zip(wanted, self.limits, strict=True))
        assert trim_prompt_cache(self.world.caches, wanted) == wanted
        for reference in self.world.references:
            reference.drop(wanted)
        self.world.droppable = 0
        for cache, rows in self.world.rows():
            self.world.cut(cache, rows)
        self.probe()

    @precondition(lambda self: not self.pending)
    @rule(n=st.integers(1, 2), more=st.sampled_from([-1, 1]))
    def another_number_of_rows(self, n: int, more: int) -> None:
        if len(self.sizes) + more > 0:
            self.refused([n] * (len(self.sizes) + more))

    @precondition(lambda self: self.started)
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
    @rule(drafted=st.booleans())
    def finalize(self, drafted: bool) -> None:
        while max(self.world.references[0].lengths or [0]) > 0:
            self.update(LONGEST, drafted)
        self.world.cut_all()
        for cache in self.world.caches:
            cache.finalize()
        for reference in self.world.references:
            reference.finalize()
        self.changed()

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        """Rows leave. Where a snapshot holds no rows, it cannot bring them back."""
        batch = len(self.world.references[0].tokens)
        keep = sorted(data.draw(st.sets(st.integers(0, batch - 1), min_size=1)))
        snapshot, grows = snapshot_prompt_cache(self.world.caches), any(ends[0] > 0 for _, ends in self.world.rows())
        self.world.cut_all()
        for cache in self.world.caches:
            cache.filter(mx.array(keep))
        assert not grows or "was cut below the snapshot" in refusal(self.world.caches, snapshot)
        for reference in self.world.references:
            reference.filter(keep)
        self.changed()

    @precondition(lambda self: self.started and len(self.world.references[0].tokens) < 4)
    @rule(histories=HISTORIES, later=st.lists(st.integers(1, LONGEST), max_size=2))
    def extend(self, histories: list[list[int]], later: list[int]) -> None:
        other = self.merged([self.single(lengths) for lengths in histories])
        for length in later:
            self.feed(other, self.block(length, other))
        self.world.cut_all()
        for cache, joined in zip(self.world.caches, other.caches, strict=True):
            cache.extend(joined)
        for reference, joined in zip(self.world.references, other.references, strict=True):
            reference.extend(joined)
        self.changed()

    @precondition(lambda self: self.started and not any(cache.empty() for cache in self.world.caches))
    @rule()
    def split(self) -> None:
        """Extract each sequence, feed it alone, then merge them into new caches."""
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
