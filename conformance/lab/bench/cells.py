"""Measure one cell: a prompt, decoded plain and with some draft types side by side.

A repetition has a plain run and a run with each draft type. They take turns of ten tokens, so a slow second of the
machine slows all of them. One measurement is the ratio of a plain run to the drafted run beside it. The prompt is
processed once before, and every run starts from a copy of its cache. The clock of a run counts only its own turns, from
the last token of the prompt to the last token of the answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftOptions, DraftStats
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.lab.bench.models import Cache, Subject, copied
from conformance.lab.streams import loops

Row = dict[str, Any]
# Tokens in a turn: far fewer than in a run, but enough that the start and the end of a turn cost little of it.
TURN = 10
SEED = 7
# Parity and the spread need this many runs of either kind.
LEAST_REPEATS, REPEATS = 3, 5


@dataclass
class Ready:
    """A processed prompt, and how to decode from there."""

    subject: Subject
    prompt: list[int]
    # The longest answer.
    tokens: int
    temperature: float = 0.0

    def __post_init__(self) -> None:
        self.cache: Cache = self.subject.prefilled(self.prompt[:-2])

    def plain(self) -> Run:
        return Run(self, generate_step)

    def drafted(self, draft_type: str) -> Run:
        drafter = DraftOptions(draft_type).make_strategy(self.subject.model)
        drafter.begin(self.prompt[:-2])
        options = {"draft_costs": self.subject.costs, "eos_token_ids": self.subject.eos, "stats": DraftStats()}
        return Run(self, speculative_generate_step, draft_strategy=drafter, **options)


class Run:
    """One decode: its tokens, and the seconds of its turns."""

    def __init__(self, ready: Ready, step: Any, stats: DraftStats | None = None, **options: Any) -> None:
        self.eos, self.most, self.stats, self.n = ready.subject.eos, ready.tokens, stats, TURN
        self.tokens: list[int] = []
        self.seconds, self.ended = 0.0, False
        options |= {"prompt_cache": copied(ready.cache), "prompt_progress_callback": self._progress}
        if stats is not None:
            options["stats"] = stats
        if ready.temperature:
            # Runs that sample share one source of random numbers, so each is decoded whole.
            options["sampler"], self.n = make_sampler(ready.temperature), self.most
        self.steps = step(mx.array(ready.prompt[-2:]), ready.subject.model, max_tokens=self.most, **options)

    def _progress(self, done: int, total: int) -> None:
        # The loop feeds the token before the last one alone, to learn the size of the vocabulary.
        if done == total - 1:
            self._start = time.perf_counter()

    def turn(self) -> None:
        """Decode the tokens of one turn, and finish the step that was begun after them, unless they are the last."""
        if not self.tokens:
            mx.random.seed(SEED)
        self._start, until = time.perf_counter(), len(self.tokens) + self.n
        while len(self.tokens) < until and not self.ended:
            token, *_ = next(self.steps)
            end = time.perf_counter()
            self.tokens.append(token)
            self.ended = token in self.eos or len(self.tokens) == self.most
        # Plain decoding has started its next step. Without this it would run in another run's turn.
        mx.synchronize(generation_stream)
        self.seconds += (end if self.ended else time.perf_counter()) - self._start


def in_turns(runs: Sequence[Run]) -> Sequence[Run]:
    """Decode all of them to the end, one turn after the other."""
    with ExitStack() as stack:
        # Plain decoding changes mlx's default stream until it ends. The first to change it must restore it last.
        for run in runs:
            stack.enter_context(closing(run.steps))
        while not all(run.ended for run in runs):
            for run in runs:
                if not run.ended:
                    run.turn()
    return runs


def compared(ready: Ready, draft_types: Sequence[str], repeats: int) -> Iterator[Row]:
    """What each draft type does on one prompt: a row for each."""
    rounds = [in_turns([ready.plain(), *map(ready.drafted, draft_types)]) for _ in range(repeats + 1)]
    # The first round warms up.
    plain, *drafted = zip(*rounds[1:], strict=True)
    yield from (row(plain, each) for each in drafted)


def row(plain: Sequence[Run], drafted: Sequence[Run]) -> Row:
    stats, tokens = drafted[-1].stats, plain[0].tokens
    assert stats is not None
    n_out = stats.forwards + stats.accepted
    equal = len(plain) >= LEAST_REPEATS and all(run.tokens == tokens for run in (*plain, *drafted))
    return {
        "tokens": len(drafted[-1].tokens),
        "loop": loops(drafted[-1].tokens),
        "tokens_per_forward": n_out / stats.forwards,
        "fed_per_token": (stats.forwards + stats.drafted) / n_out,
        "plain_tps": statistics.median(len(run.tokens) / run.seconds for run in plain),
        **spread([a.seconds / b.seconds for a, b in zip(plain, drafted, strict=True)], equal),
    }


def spread(ratios: Sequence[float], equal: bool) -> Row:
    """The speed of pairs of runs, which only runs with parity have."""
    found = (statistics.median(ratios), min(ratios), max(ratios)) if equal else (None,) * 3
    return {"parity": equal} | dict(zip(("speed", "low", "high"), found, strict=True))
