"""One cell: a task decoded plain and with some strategies, in turns.

A repetition is plain, two drafted runs, plain, two drafted runs, and so on: next to each drafted run stands a plain
one, and the ratio of such a pair is a measurement. The prompt is processed before, once, and every run starts from a
copy of its cache. The clock runs from the last token of the prompt to the last token of the answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance.bench import limit
from conformance.bench.models import Cache, Subject, copied
from conformance.bench.plan import LEAST_REPEATS, Plan
from conformance.bench.strategies import Recorded, Strategy
from conformance.bench.tasks import Dictated, Task

Row = dict[str, Any]


@dataclass
class Run:
    tokens: list[int]
    seconds: float
    # From the last token of the prompt to the first of the answer.
    first: float
    stats: DraftStats | None = None
    # Of the drafts that were fed: how many tokens were accepted, and how many drafted.
    recorded: list[tuple[int, int]] = field(default_factory=list)
    # What the strategy took for the prompt.
    index: float = 0.0

    @property
    def tps(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass
class Ready:
    """A prompt that was processed, and how to decode from there."""

    subject: Subject
    model: Any
    prompt: list[int]
    cache: Cache
    prefill: float | None
    max_tokens: int
    lengths: Sequence[int]
    samples: limit.Samples = field(default_factory=dict)

    def time_blocks(self, repeats: int) -> None:
        """Add to the times of blocks, before the runs and after them."""
        for length, values in limit.block_samples(self.model, self.cache, self.lengths, repeats).items():
            self.samples.setdefault(length, []).extend(values)

    def plain(self) -> Run:
        return self._run(generate_step)

    def drafted(self, strategy: Strategy, record: bool = False) -> Run:
        start = time.perf_counter()
        drafter = strategy.make(self.prompt[:-2])
        index = time.perf_counter() - start
        drafter = Recorded(drafter) if record else drafter
        stats = DraftStats()
        run = self._run(
            speculative_generate_step,
            draft_strategy=drafter,
            draft_costs=self.subject.costs,
            draft_margin=self.subject.margin,
            eos_token_ids=self.subject.eos,
            stats=stats,
            **strategy.loop,
        )
        run.index, run.stats, run.recorded = index, stats, drafter.blocks if record else []
        return run

    def _run(self, step: Any, **options: Any) -> Run:
        start = first = end = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal start
            # The token before the last is fed on its own: from it the loop learns the size of the vocabulary.
            if done == total - 1:
                start = time.perf_counter()

        options |= {"prompt_cache": copied(self.cache), "prompt_progress_callback": progress}
        steps = step(mx.array(self.prompt[-2:]), self.model, max_tokens=self.max_tokens, **options)
        tokens: list[int] = []
        with closing(steps):
            for token, *_ in steps:
                end = time.perf_counter()
                first = first or end
                tokens.append(token)
                if token in self.subject.eos:
                    break
        return Run(tokens, end - start, first - start)


def prepare(subject: Subject, task: Task, plan: Plan) -> Ready:
    prompt, text = task.tokens(subject)
    cache, seconds = subject.prefilled(prompt[:-2])
    model = Dictated(subject.model, text) if text else subject.model
    return Ready(subject, model, prompt, cache, seconds, plan.tokens, plan.lengths)


def measure(subject: Subject, task: Task, strategies: Sequence[Strategy], plan: Plan) -> Iterator[Row]:
    """A row for each strategy."""
    ready = prepare(subject, task, plan)
    # Nothing is timed the first time; this is also where the blocks are recorded.
    ready.plain()
    traces = [ready.drafted(strategy, record=True) for strategy in strategies]
    order = turns(len(strategies), plan.repeats)
    ready.time_blocks(plan.repeats // 2)
    runs = [ready.plain() if i is None else ready.drafted(strategies[i]) for i in order]
    ready.time_blocks(plan.repeats // 2)
    plain = [run for run, i in zip(runs, order, strict=True) if i is None]
    for i, strategy in enumerate(strategies):
        yield (
            subject.labels()
            | task.labels()
            | strategy.labels()
            | {"prompt_tokens": len(ready.prompt)}
            | row(ready, plain, *beside_plain(runs, order, i), traces[i])
        )


def turns(n_strategies: int, repeats: int) -> list[int | None]:
    """Which strategy each run has; None is plain. One strategy stands between two plain runs, two share them."""
    once: list[int | None] = []
    for i in range(n_strategies):
        once += [None, i] if i % 2 == 0 else [i]
    return once * repeats + [None]


def beside_plain(runs: Sequence[Run], order: Sequence[int | None], strategy: int) -> tuple[list[Run], list[float]]:
    """The runs of a strategy, and what the plain ones next to each took in multiples of it."""
    drafted, ratios = [], []
    for at, i in enumerate(order):
        if i == strategy:
            plain = [runs[j].seconds for j in (at - 1, at + 1) if order[j] is None]
            drafted.append(runs[at])
            ratios.append(statistics.mean(plain) / runs[at].seconds)
    return drafted, ratios


def parity(plain: Sequence[Run], drafted: Sequence[Run]) -> bool:
    """The same tokens in all runs, at least three of each kind."""
    runs = [run.tokens for run in (*plain, *drafted)]
    return min(len(plain), len(drafted)) >= LEAST_REPEATS and all(tokens == runs[0] for tokens in runs)


def row(ready: Ready, plain: Sequence[Run], drafted: Sequence[Run], ratios: Sequence[float], trace: Run) -> Row:
    """What was measured, but for the ideal, which takes the costs of all prompts. Without parity there is no speed."""
    stats, recorded = trace.stats, trace.recorded
    assert stats is not None
    equal = parity(plain, drafted)
    blocks = limit.block_lengths(recorded, stats.forwards)
    costs = limit.relative(ready.samples)
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
            "ratios": list(ratios),
            "tps": statistics.median(run.tps for run in drafted),
            "ttft": first_token(ready, drafted),
        }
    return result | speeds


def first_token(ready: Ready, runs: Sequence[Run]) -> float | None:
    """Seconds to the first token: the prompt, its index and the first step; None where the prompt was not timed."""
    if ready.prefill is None:
        return None
    return ready.prefill + statistics.median(run.index + run.first for run in runs)
