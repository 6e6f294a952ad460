"""Measure one cell: a task, decoded plain and with some strategies side by side.

A repetition has a plain run and a run with each strategy. They take turns of ten tokens, so a slow second of the
machine slows all of them. One measurement is the ratio of a plain run to the drafted run beside it. The prompt is
processed once before, and every run starts from a copy of its cache. The clock of a run counts only its own turns, from
the last token of the prompt to the last token of the answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step

from conformance.bench import limit
from conformance.bench.models import Cache, Subject, copied
from conformance.bench.plan import LEAST_REPEATS, Plan
from conformance.bench.strategies import Recorded, Strategy
from conformance.bench.tasks import Dictated, Task

Row = dict[str, Any]
# Tokens in a turn: far fewer than in a run, but enough that the start and the end of a turn cost little of it.
TURN = 10


@dataclass
class TimedRun:
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    # From the last token of the prompt to the first of the answer.
    first: float = 0.0
    stats: DraftStats | None = None
    # (accepted, drafted) for each draft that was fed.
    recorded: list[tuple[int, int]] = field(default_factory=list)
    # The time that the strategy spent on the prompt.
    index: float = 0.0

    @property
    def tps(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass
class Ready:
    """A processed prompt, and how to decode from there."""

    subject: Subject
    model: Any
    prompt: list[int]
    cache: Cache
    prefill: float | None
    max_tokens: int
    lengths: Sequence[int]
    samples: limit.Samples = field(default_factory=dict)

    def time_blocks(self, repeats: int) -> None:
        """Time blocks, and add to the times that are there. Called before and after the runs."""
        for length, values in limit.block_samples(self.model, self.cache, self.lengths, repeats).items():
            self.samples.setdefault(length, []).extend(values)

    def plain(self) -> Decoding:
        return Decoding(self, generate_step, TimedRun())

    def drafted(self, strategy: Strategy, record: bool = False) -> Decoding:
        start = time.perf_counter()
        drafter = strategy.make(self.prompt[:-2])
        index = time.perf_counter() - start
        drafter = Recorded(drafter) if record else drafter
        run = TimedRun(stats=DraftStats(), recorded=drafter.blocks if record else [], index=index)
        return Decoding(
            self,
            speculative_generate_step,
            run,
            draft_strategy=drafter,
            draft_costs=self.subject.costs,
            draft_margin=self.subject.margin,
            eos_token_ids=self.subject.eos,
            stats=run.stats,
            **strategy.loop,
        )


class Decoding:
    """A run that is in progress."""

    def __init__(self, ready: Ready, step: Any, run: TimedRun, **options: Any) -> None:
        self.run, self.eos, self.most = run, ready.subject.eos, ready.max_tokens
        options |= {"prompt_cache": copied(ready.cache), "prompt_progress_callback": self._progress}
        self.steps = step(mx.array(ready.prompt[-2:]), ready.model, max_tokens=self.most, **options)
        self.ended = False

    def _progress(self, done: int, total: int) -> None:
        # The loop feeds the token before the last one alone, to learn the size of the vocabulary.
        if done == total - 1:
            self._start = time.perf_counter()

    def turn(self) -> None:
        """Decode the tokens of one turn, and finish the step that was begun after them, unless they are the last."""
        run, self._start, until = self.run, time.perf_counter(), len(self.run.tokens) + TURN
        while len(run.tokens) < until and not self.ended:
            token, *_ = next(self.steps)
            end = time.perf_counter()
            run.first = run.first or end - self._start
            run.tokens.append(token)
            self.ended = token in self.eos or len(run.tokens) == self.most
        # Plain decoding has started its next step. Without this it would run in another run's turn.
        mx.synchronize(generation_stream)
        run.seconds += (end if self.ended else time.perf_counter()) - self._start


def in_turns(decodings: Sequence[Decoding]) -> list[TimedRun]:
    """Decode all of them to the end, one turn after the other."""
    with ExitStack() as stack:
        # Plain decoding changes mlx's default stream until it ends. The first to change it must restore it last.
        for decoding in decodings:
            stack.enter_context(closing(decoding.steps))
        while not all(decoding.ended for decoding in decodings):
            for decoding in decodings:
                if not decoding.ended:
                    decoding.turn()
    return [decoding.run for decoding in decodings]


def prepare(subject: Subject, task: Task, plan: Plan) -> Ready:
    prompt, text = task.tokens(subject)
    cache, seconds = subject.prefilled(prompt[:-2])
    model = Dictated(subject.model, text) if text else subject.model
    return Ready(subject, model, prompt, cache, seconds, plan.tokens, plan.lengths)


def measure(subject: Subject, task: Task, strategies: Sequence[Strategy], plan: Plan) -> Iterator[Row]:
    """A row for each strategy."""
    ready = prepare(subject, task, plan)
    repeats = plan.repeats * (plan.fine_factor if task.workload in plan.fine else 1)
    # The first round warms up, and records the blocks.
    _, *traces = in_turns([ready.plain(), *(ready.drafted(strategy, record=True) for strategy in strategies)])
    ready.time_blocks(plan.repeats // 2)
    runs = [in_turns([ready.plain(), *map(ready.drafted, strategies)]) for _ in range(repeats)]
    ready.time_blocks(plan.repeats // 2)
    plain, *drafted = zip(*runs, strict=True)
    for strategy, trace, each in zip(strategies, traces, drafted, strict=True):
        yield (
            subject.labels()
            | task.labels()
            | strategy.labels()
            | {"prompt_tokens": len(ready.prompt)}
            | row(ready, plain, each, trace)
        )


def parity(plain: Sequence[TimedRun], drafted: Sequence[TimedRun]) -> bool:
    """Whether all runs have the same tokens. Needs at least three runs of each kind."""
    runs = [run.tokens for run in (*plain, *drafted)]
    return min(len(plain), len(drafted)) >= LEAST_REPEATS and all(tokens == runs[0] for tokens in runs)


def row(ready: Ready, plain: Sequence[TimedRun], drafted: Sequence[TimedRun], trace: TimedRun) -> Row:
    """The row of a cell, without the ideal speed, which needs the costs of all prompts. No parity means no speed."""
    stats, recorded = trace.stats, trace.recorded
    assert stats is not None
    equal = parity(plain, drafted)
    blocks = limit.block_lengths(recorded, stats.forwards)
    costs = limit.relative(ready.samples)
    ratios = [a.seconds / b.seconds for a, b in zip(plain, drafted, strict=True)]
    speed = statistics.median(ratios) if equal else None
    result: Row = {
        "parity": equal,
        "runs": [len(plain), len(drafted)],
        "tokens": len(trace.tokens),
        "tokens_per_forward": (stats.forwards + stats.accepted) / stats.forwards,
        "fed_per_token": (stats.forwards + stats.drafted) / (stats.forwards + stats.accepted),
        "acceptance": stats.accepted / stats.drafted if stats.drafted else None,
        "drafted": stats.drafted,
        "positions": limit.by_position(recorded),
        "blocks": {str(length): blocks[length] for length in sorted(blocks) if blocks[length]},
        "near_ties": stats.near_ties,
        "plain_tps": statistics.median(run.tps for run in plain),
        "prefill_tps": None if ready.prefill is None else (len(ready.prompt) - 2) / ready.prefill,
        "plain_ttft": first_token(ready, plain),
        "block_costs": {str(length): round(value, 3) for length, value in costs.items()},
    }
    speeds: Row = {"speed": None, "low": None, "high": None, "ratios": [], "tps": None, "ttft": None}
    if speed is not None:
        speeds = {
            "speed": speed,
            "low": min(ratios),
            "high": max(ratios),
            "ratios": ratios,
            "tps": statistics.median(run.tps for run in drafted),
            "ttft": first_token(ready, drafted),
        }
    return result | speeds


def first_token(ready: Ready, runs: Sequence[TimedRun]) -> float | None:
    """Seconds to the first token: the prompt, its index and the first step. None if the prompt was not timed."""
    if ready.prefill is None:
        return None
    return ready.prefill + statistics.median(run.index + run.first for run in runs)
