"""The stages of the benchmark. Each yields rows, which are a file and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from conformance.bench import costs, models, serving, strategies, tasks
from conformance.bench.cells import Row, measure
from conformance.bench.models import Subject
from conformance.bench.plan import Plan, Progress
from conformance.bench.tasks import ALSO_GIVEN, GIVEN, OWN, Task

# Enough to see the effect of a number type: two workloads that copy, one that repeats nothing.
TYPES_SHOWN = (("echo", OWN), ("code-edit", OWN), ("prose", GIVEN))
TYPES = ("fp16", "fp32")
Stage = Callable[[], Iterable[Row]]


def stages_of(subject: Subject, plan: Plan, progress: Progress) -> dict[str, Stage]:
    """By the name of the file. Only the fixture comes in several number types."""
    found: dict[str, Stage] = {
        "blocks": lambda: blocks(subject, plan, progress),
        "workloads": lambda: workloads(subject, plan, progress),
        "serving": lambda: serving.measure(subject, plan, progress),
    }
    return found | {"types": lambda: types(subject, plan, progress)} if subject.fixture else found


def told(rows: Iterable[Row], progress: Progress) -> Iterator[Row]:
    for row in rows:
        speed = "NO PARITY" if row["speed"] is None else f"{row['speed']:.2f}x"
        what = f"{row['task']}, {row['answer']} answer, {row['size']}: {row['strategy']}"
        progress(f"{row['model']} {row['weights']}, {what} {speed}")
        yield row


def blocks(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """Blocks after contexts of all lengths, and after one of the first length in the other number types."""
    yield from costs.measure(subject, plan.model_contexts, plan, progress)
    for weights in TYPES if subject.fixture else ():
        other = models.larger(plan.hidden, weights)
        yield from costs.measure(other, plan.model_contexts[:1], plan, progress)


def workloads(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """All workloads: the default strategy on every prompt, the others on one each."""
    every = strategies.main_ones(subject)
    for task in tasks.every(subject, plan):
        chosen = every if shows_a_class(subject, task) else every[:1]
        yield from told(measure(subject, task, chosen, plan), progress)


def shows_a_class(subject: Subject, task: Task) -> bool:
    """Whether this is the first short task of its class, with a given answer if the fixture cannot make it."""
    if task.workload == "edits-long" or task.size != "short" or task.name != f"{task.workload} {task.turn}":
        return False
    return task.form == GIVEN or task.workload not in ALSO_GIVEN or not subject.fixture


def types(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """Some workloads in all number types. They show how much of a gain comes from a slow baseline."""
    for weights in (subject.weights, *TYPES):
        one = models.larger(plan.hidden, weights)
        found = {(task.workload, task.form): task for task in tasks.singles(one, replace(plan, prompts=1))}
        for task in (found[key] for key in TYPES_SHOWN if key in found):
            default = strategies.main_ones(one)[:1]
            yield from told(measure(one, task, default, replace(plan, fine=())), progress)
