"""The first drafted response with a model, for which nothing is known of the device, and the one after it.

Both decode the same prompt, each in turns with a plain run beside it.
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
    """The speeds of a response for which the costs are not known, and of the next one."""
    # What responses learn of a model is kept with it.
    vars(ready.subject.model).pop("_block_costs", None)
    return speed(ready, strategy), speed(ready, strategy)


def speed(ready: Ready, strategy: Strategy) -> float:
    plain, drafted = in_turns([ready.plain(), ready.drafted(strategy)])
    return plain.seconds / drafted.seconds
