"""The stages of the benchmark that decode prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mlx_lm.draft import NgramModTable

from conformance.bench import models, strategies, tasks
from conformance.bench.cells import Row, measure
from conformance.bench.models import Subject
from conformance.bench.peers import SHOWN
from conformance.bench.plan import Plan, Progress
from conformance.bench.strategies import LOOKUPS, Strategy
from conformance.bench.tasks import ALSO_GIVEN, GIVEN, OWN, Task

# Enough to see the effect of a number type: two workloads that copy, one that repeats nothing.
TYPES_SHOWN = (("echo", OWN), ("code-edit", OWN), ("prose", GIVEN))


def told(rows: Iterable[Row], progress: Progress, done: str) -> Iterator[Row]:
    for row in rows:
        speed = "NO PARITY" if row["speed"] is None else f"{row['speed']:.2f}x"
        options = f" {row['options']}" if row["options"] else ""
        progress(f"{done}: {row['task']}, {row['answer']} answer, {row['size']}: {row['strategy']}{options} {speed}")
        yield row


def each(
    subject: Subject, asked: list[Task], plan: Plan, progress: Progress, chosen: dict[int, list[Strategy]]
) -> Iterator[Row]:
    """Measure all tasks. ``chosen`` maps the index of a task to its strategies."""
    strategies.warmed(subject)
    for i, task in enumerate(asked):
        done = f"{subject.name} {subject.weights} {i + 1}/{len(asked)}"
        yield from told(measure(subject, task, chosen[i], plan), progress, done)


def workloads(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """All workloads: the default strategy on every prompt, the others on one each, a draft model as in the peers."""
    every, asked = strategies.main_ones(subject), tasks.every(subject, plan)
    chosen = {i: every[: how_many(subject, task)] for i, task in enumerate(asked)}
    yield from each(subject, asked, plan, progress, chosen)


def how_many(subject: Subject, task: Task) -> int | None:
    """How many of the strategies decode this task. None means all."""
    if not shows_a_class(subject, task):
        return 1
    return None if task.workload in SHOWN else len(LOOKUPS)


def shows_a_class(subject: Subject, task: Task) -> bool:
    """Whether this is the first short task of its class, in the usual form of the class."""
    if task.workload == "edits-long" or task.size != "short":
        return False
    return task.name == f"{task.workload} {task.turn}" and task in in_form(subject, [task])


def in_form(subject: Subject, asked: Iterable[Task]) -> list[Task]:
    """The tasks in the usual form of their class. The answer is given if the fixture cannot make it."""
    return [task for task in asked if task.form == GIVEN or task.workload not in ALSO_GIVEN or not subject.fixture]


def sweep(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """Sweep the options on one prompt of some workloads. The answer is given if the fixture cannot make it."""
    every_class = in_form(subject, tasks.singles(subject, replace(plan, prompts=1)))
    asked = [task for task in every_class if task.workload in plan.swept]
    every = list(strategies.swept(subject, plan))
    yield from each(subject, asked, replace(plan, fine=()), progress, dict.fromkeys(range(len(asked)), every))


def types(plan: Plan, progress: Progress) -> Iterator[Row]:
    """The widened fixture in the other number types. They show how much of a gain comes from a slow baseline."""
    for weights in ("fp16", "fp32"):
        subject = models.larger(plan.hidden, weights)
        found = {(task.workload, task.form): task for task in tasks.singles(subject, replace(plan, prompts=1))}
        asked = [found[key] for key in TYPES_SHOWN if key in found]
        auto = strategies.main_ones(subject)[:1]
        yield from each(subject, asked, replace(plan, fine=()), progress, dict.fromkeys(range(len(asked)), auto))


def memory(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """Turns of edits with an n-gram memory of the earlier turns, and with a memory of the answers of another model."""
    strategies.warmed(subject)
    asked = [task for task in tasks.edits(subject, plan) if task.workload == "edits-short"]
    if not asked:
        return
    last = asked[-1]
    other = subject.encode([*last.messages, {"role": "assistant", "content": last.answer}], answered=True)
    with tempfile.TemporaryDirectory() as folder:
        for task in asked:
            before = subject.encode(task.messages[:-1], answered=True) if task.turn > 1 else []
            cold, warm = (
                saved(subject, texts, Path(folder) / name) for texts, name in (([before], "cold"), ([other], "warm"))
            )
            chosen = [reloaded(subject, cold, "cold"), reloaded(subject, warm, "warm")]
            yield from told(measure(subject, task, chosen, plan), progress, "memory")


def saved(subject: Subject, texts: list[list[int]], path: Path) -> Path:
    strategies.memory(subject, [text for text in texts if text]).save(str(path))
    return path


def reloaded(subject: Subject, path: Path, state: str) -> Strategy:
    """A strategy that loads the same memory for every run."""

    def make(prompt: list[int]) -> object:
        return strategies.remembered(subject, NgramModTable.load(str(path)), state).make(prompt)

    return Strategy("ngram-mod", make, state=state)
