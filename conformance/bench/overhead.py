"""Measure the time of the loop outside the model, by part, in microseconds for each forward pass.

Here each call of the model evaluates its result, so that its time can be subtracted. Plain decoding is measured in the
same way: its own loop and its choice of tokens are the numbers to compare with.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft.planner import Planner
from mlx_lm.draft.verify import BlockVerifier

from conformance.bench import strategies
from conformance.bench.cells import Ready, Row, in_turns, prepare
from conformance.bench.models import Subject
from conformance.bench.plan import Plan, Progress
from conformance.bench.tasks import single

SHOWN = ("code-edit", "json_rag", "agent")


class Clock:
    """Measures exclusive times: while an inner part runs, the clock of the outer part stops."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.running: list[tuple[str, float]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        now = time.perf_counter()
        if self.running:
            outer, since = self.running[-1]
            self.seconds[outer] += now - since
        self.running.append((name, now))
        try:
            yield
        finally:
            now = time.perf_counter()
            _, since = self.running.pop()
            self.seconds[name] += now - since
            if self.running:
                self.running[-1] = (self.running[-1][0], now)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call


class TimedModel:
    def __init__(self, model: Any, clock: Clock) -> None:
        self.model, self.clock, self.forwards = model, clock, -1
        self.layers = model.layers

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        with self.clock.part("model_us"):
            logits: mx.array = self.model(inputs, cache=cache)
            mx.eval(logits, [c.state for c in cache])
        self.forwards += 1
        if self.forwards == 0:
            # This is the token before the last one of the prompt. A run starts after it.
            self.clock.seconds.clear()
        return logits


class TimedStrategy:
    def __init__(self, strategy: Any, clock: Clock) -> None:
        self.strategy = strategy
        for name in ("observe", "propose", "accept"):
            setattr(self, name, clock.timed("draft", getattr(strategy, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)


def parts(ready: Ready, strategy: strategies.Strategy | None) -> dict[str, float]:
    """Microseconds for each forward pass, by part. The rest is the loop and the choice of the tokens."""
    clock, model = Clock(), ready.model
    timed = TimedModel(model, clock)
    with ExitStack() as stack:
        stack.enter_context(patch.object(ready, "model", timed))
        for owner, part, names in (
            (Planner, "plan", ("observe", "plan", "learn", "accept", "runs_ahead")),
            (BlockVerifier, "rewind", ("verify", "accept")),
        ):
            for name in names:
                stack.enter_context(patch.object(owner, name, clock.timed(part, getattr(owner, name))))
        if strategy is None:
            decoding = ready.plain()
        else:
            wrapped = strategies.Strategy(
                strategy.name, lambda prompt: TimedStrategy(strategy.make(prompt), clock), strategy.options
            )
            decoding = ready.drafted(wrapped)
        (run,) = in_turns([decoding])
    found = {name: clock.seconds[name] for name in ("model_us", "draft", "plan", "rewind")}
    found["loop"] = run.seconds - sum(found.values())
    return {name: 1e6 * seconds / timed.forwards for name, seconds in found.items()}


def measure(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """The median of several runs, plain and with each lookup strategy."""
    for workload in SHOWN[: 1 if plan.quick else None]:
        ready = prepare(subject, single(workload, 0), plan)
        chosen = [None, *strategies.main_ones(subject)[: len(strategies.LOOKUPS)]]
        in_turns([ready.plain()])
        for strategy in chosen:
            runs = sorted(
                (parts(ready, strategy) for _ in range(plan.repeats)),
                key=lambda found: sum(found.values()) - found["model_us"],
            )
            middle = runs[len(runs) // 2]
            name = "plain" if strategy is None else strategy.name
            progress(f"overhead: {workload}, {name} {sum(middle.values()) - middle['model_us']:.0f} us a forward")
            yield subject.labels() | {"workload": workload, "strategy": name} | middle
