"""The time of a forward pass is learned for its own number of tokens, also while rows join or near ties are met."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftStats
from mlx_lm.draft.costs import LearnedCosts, PassClock
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch, speculative_generate_step

from conformance.doors.batch import alone
from conformance.drafters import Partly
from conformance.subjects.families import model_of

N = 60
Learned = list[tuple[int, int]]


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is long, so that the time of each pass is learned."""
    times = (2.0**n for n in count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))


def prompt(row: int) -> list[int]:
    return [(7 * i + 3 * row) % 64 for i in range(9 + row)]


def joining() -> Learned:
    """The numbers of tokens that a batch learns the times of, each with what was read, or 0 where a row joined beside
    the pass. One row after another joins.
    """
    model, reads, joined, learned = model_of("llama").model, [0], [False], Learned()
    read, generate = PassClock.read, PromptProcessingBatch.generate

    def note(self: PassClock, tokens: mx.array, ahead: bool) -> Any:
        reads.append(0 if joined[0] else tokens.size)
        joined[0] = False
        return read(self, tokens, ahead)

    def join(self: PromptProcessingBatch, *args: Any) -> Any:
        batch = generate(self, *args)
        joined[0] = True
        return batch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PassClock, "read", note)
        patched.setattr(PromptProcessingBatch, "generate", join)
        patched.setattr(LearnedCosts, "learn", lambda _, n, __: learned.append((n, reads[-1])))
        generator = BatchGenerator(model, draft_costs=LearnedCosts(BlockCosts((1, 2, 16), (1.0, 1.35, 6.0))))
        for row in range(3):
            text = prompt(row) + alone(model, prompt(row), N).tokens
            generator.insert([prompt(row)], [N], planners=[Planner(Partly(text, 1.0), 4, DraftStats())])
            for _ in range(4):
                generator.next()
    return learned


def near_ties() -> Learned:
    """The numbers of tokens that are learned where each token of a block is a near tie, each with what was fed."""
    model, fed, learned = model_of("llama").model, Learned(), Learned()
    text = prompt(0) + alone(model, prompt(0), N).tokens

    class Noting:
        layers, args = model.layers, model.args

        def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
            fed.append((inputs.shape[1], 0))
            return model(inputs, cache=cache)

    begun = [0]
    with pytest.MonkeyPatch.context() as patched:
        begin, end = PassClock.begin, PassClock.fed

        def note_begin(self: PassClock, drafted: bool) -> None:
            begun[0] = len(fed)
            begin(self, drafted)

        def note_fed(self: PassClock, n_tokens: int) -> None:
            end(self, n_tokens)
            if self._pass:
                learned.append((n_tokens, sum(n for n, _ in fed[begun[0] :])))

        patched.setattr(PassClock, "begin", note_begin)
        patched.setattr(PassClock, "fed", note_fed)
        steps = speculative_generate_step(
            mx.array(prompt(0)),
            Noting(),
            draft_strategy=Partly(text, 1.0),
            num_draft_tokens=4,
            draft_margin=0.3,
            draft_costs=BlockCosts((1, 64), (1.0, 1.0)),
            max_tokens=N,
        )
        assert len(list(steps)) == N
    return learned


CASES: dict[str, Callable[[], Learned]] = {"joining": joining, "near ties": near_ties}


def check(case: str) -> None:
    learned = CASES[case]()
    assert len(learned) > 2
    assert all(booked == passed for booked, passed in learned), learned


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("long_waits", "uncompiled")
def test_a_time_is_booked_on_its_own_pass(case: str) -> None:
    check(case)


@pytest.mark.planted
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("long_waits", "uncompiled")
def test_a_time_of_two_passes_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the clock does not forget a pass that another one is beside."""
    monkeypatch.setattr(PassClock, "forget", lambda _: None)
    with pytest.raises(AssertionError):
        check(case)
