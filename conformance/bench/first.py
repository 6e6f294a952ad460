"""Measure the first drafted response with a model, before any cost of the device is known, and the second one.

Both decode the same prompt. Each takes turns with a plain run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from conformance.bench import strategies, tasks
from conformance.bench.cells import Ready, Row, in_turns, prepare
from conformance.bench.models import Subject
from conformance.bench.plan import Plan, Progress
from conformance.bench.stages import TYPES_SHOWN
from conformance.bench.strategies import Strategy


def measure(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    strategies.warmed(subject)
    found = {(task.workload, task.form): task for task in tasks.singles(subject, replace(plan, prompts=1))}
    auto = strategies.main_ones(subject)[0]
    for key in TYPES_SHOWN:
        if key not in found:
            continue
        task, ready = found[key], prepare(subject, found[key], plan)
        # The first pair warms up.
        pairs = [pair(ready, auto) for _ in range(plan.repeats + 1)][1:]
        ratios = [first / second for first, second in pairs]
        row: Row = {"model": subject.name, "weights": subject.weights, "workload": task.workload, "answer": task.form}
        row["first"], row["second"] = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
        row |= {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        progress(f"first response: {task.workload} {row['ratio']:.2f}")
        yield row


def pair(ready: Ready, strategy: Strategy) -> tuple[float, float]:
    """The speed of the first response, while the costs are unknown, and the speed of the second."""
    # The costs that responses learn are stored by model.
    vars(ready.subject.model).pop("_block_costs", None)
    return speed(ready, strategy), speed(ready, strategy)


def speed(ready: Ready, strategy: Strategy) -> float:
    plain, drafted = in_turns([ready.plain(), ready.drafted(strategy)])
    return plain.seconds / drafted.seconds
