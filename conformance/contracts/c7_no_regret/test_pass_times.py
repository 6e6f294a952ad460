"""The time of a forward pass is learned for its own number of tokens, also while rows join or near ties are met."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftStats
from mlx_lm.draft.costs import LearnedCosts, PassClock
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch, speculative_generate_step

from conformance.drafters import Partly
from conformance.oracle.recorder import fed
from conformance.oracle.rows import Plain
from conformance.subjects.families import model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
N = 60
COSTS = BlockCosts((1, 2, 16), (1.0, 1.35, 6.0))


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is long, so that the time of each pass is learned."""
    times = (2.0**n for n in count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))


def prompt(row: int) -> list[int]:
    return [(7 * i + 3 * row) % 64 for i in range(9 + row)]


def right(row: int = 0) -> Partly:
    """A drafter whose drafts are all right."""
    return Partly(prompt(row) + Plain(model_of("llama").model).answer(tuple(prompt(row)), N).tokens, 1.0)


def decode(**options: Any) -> None:
    options |= {"draft_strategy": right(), "num_draft_tokens": 4, "max_tokens": N}
    steps = speculative_generate_step(mx.array(prompt(0)), model_of("llama").model, **options)
    assert len(list(steps)) == N


def check(learned: list[tuple[int, int]]) -> None:
    """Numbers of tokens that the times of passes are learned for, each with that of the pass."""
    assert len(learned) > 2
    for booked, passed in learned:
        assert booked == passed, f"the time of a pass of {passed} tokens, or 0 beside others, is learned for {booked}"


def test_rows_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row after another joins a batch. A pass with others beside it counts as none."""
    reads, joined, learned = [0], [False], list[tuple[int, int]]()
    read, generate = PassClock.read, PromptProcessingBatch.generate

    def note(self: PassClock, tokens: mx.array, ahead: bool) -> Any:
        reads.append(0 if joined[0] else tokens.size)
        joined[0] = False
        return read(self, tokens, ahead)

    def join(self: PromptProcessingBatch, *args: Any) -> Any:
        batch = generate(self, *args)
        joined[0] = True
        return batch

    monkeypatch.setattr(PassClock, "read", note)
    monkeypatch.setattr(PromptProcessingBatch, "generate", join)
    monkeypatch.setattr(LearnedCosts, "learn", lambda _, n, __: learned.append((n, reads[-1])))
    generator = BatchGenerator(model_of("llama").model, draft_costs=LearnedCosts(COSTS))
    for row in range(3):
        generator.insert([prompt(row)], [N], planners=[Planner(right(row), 4, DraftStats())])
        for _ in range(4):
            generator.next()
    check(learned)


def test_near_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of a block is a near tie, which takes a pass of its own."""
    learned, begun = list[tuple[int, int]](), [0]
    begin, end = PassClock.begin, PassClock.fed

    def note_begin(self: PassClock, drafted: bool) -> None:
        begun[0] = len(blocks)
        begin(self, drafted)

    def note_fed(self: PassClock, n_tokens: int) -> None:
        end(self, n_tokens)
        if self._pass:
            learned.append((n_tokens, sum(blocks[begun[0] :])))

    monkeypatch.setattr(PassClock, "begin", note_begin)
    monkeypatch.setattr(PassClock, "fed", note_fed)
    with fed(model_of("llama").model) as blocks:
        decode(draft_margin=0.3, draft_costs=BlockCosts((1, 64), (1.0, 1.0)))
    check(learned)


def test_a_quantized_cache_has_costs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks cost nearly as much as their tokens, which a plain cache would be wrong about."""
    learners = list[LearnedCosts]()
    monkeypatch.setattr(LearnedCosts, "learn", lambda self, *_: learners.append(self))
    for options in ({}, {"kv_bits": 8, "kv_group_size": 32}):
        decode(**options)
        learners.append(COSTS)
    plain, quantized = learners[: learners.index(COSTS)], learners[learners.index(COSTS) + 1 : -1]
    assert plain
    assert quantized
    assert not {*map(id, plain)} & {*map(id, quantized)}, "the times of both caches are learned together"
