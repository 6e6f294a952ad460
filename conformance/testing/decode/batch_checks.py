"""Rows of a batch with drafts decode as they do alone. These checks compare the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, product
from typing import Any

from mlx_lm.generate import BatchGenerator

from conformance.doors.batch import (
    DRAFT,
    FREE,
    Alone,
    Answer,
    Broken,
    Request,
    answers,
    asked,
    break_part,
    check_answer,
    insert,
    prompt_of,
)
from conformance.drafters import Partly
from conformance.oracle.recorder import Recording, Task, gap, next_turn, plain
from conformance.oracle.replay import noises
from conformance.subjects.architectures import build
from conformance.subjects.families import model_of


@dataclass(frozen=True)
class Row:
    """A request, and the share of each draft that is right. None means no drafts."""

    length: int
    share: float | None
    n: int

    @property
    def prompt(self) -> list[int]:
        return prompt_of(self.length)

    @property
    def task(self) -> Task:
        return Task(tuple(self.prompt), self.n)


# The first prompt fills the windows and chunks of the tiny configurations. The other rows fill them with their answers.
ROWS = (Row(21, 1.0, 20), Row(3, 0.5, 16), Row(9, 0.0, 8), Row(14, None, 8))
# Upstream model faults, with and without drafts. This model computes a wrong block once its window is full:
SHORT = {"plamo3": (Row(5, 1.0, 9), Row(3, 0.5, 9), Row(2, 0.0, 6), Row(1, None, 6))}
# The rounding of float32 logits in attention with padding, which adds in another order.
ROUNDING = 1e-5


def serve(name: str, model: Any, rights: list[Recording], drafted: bool) -> list[Answer]:
    requests = []
    for row, right in zip(rows_of(name), rights, strict=True):
        script = Partly(row.prompt + right.tokens, row.share or 0)
        requests.append(Request(row.prompt, row.n, script if drafted and row.share is not None else None))
    return answers(BatchGenerator(model, draft_costs=FREE), requests)


def rows_of(name: str) -> tuple[Row, ...]:
    return SHORT.get(name, ROWS)


def complaints(name: str) -> list[str]:
    """The differences between a batch with drafts and its rows alone. Empty if it is right."""
    model, rows = build(name), rows_of(name)
    rights = [plain(model, row.task) for row in rows]

    @cache
    def together() -> list[Answer]:
        return serve(name, model, rights, drafted=False)

    def noise(i: int) -> float:
        return gap(together()[i].rows, rights[i].rows)

    found: list[str] = []
    drafted = serve(name, model, rights, drafted=True)
    for i, (row, right, got) in enumerate(zip(rows, rights, drafted, strict=True)):
        found += [f"{what} of {row}" for what in complaints_of(model, row, right, got, partial(noise, i))]
    return found


def complaints_of(model: Any, row: Row, right: Recording, got: Answer, noise: Callable[[], float]) -> list[str]:
    if got.tokens != right.tokens:
        return ["tokens"]

    def near(distance: float, n_noises: int) -> bool:
        """Measuring the noise takes as long as the rest, so it is done only for a model that has some."""
        return (
            distance == 0
            or distance <= n_noises * noise()
            or any(distance <= n_noises * one for one in noises(model, row.task, right, snaps=False))
        )

    after = gap(next_turn(model, got.last.prompt_cache, row.task.after), right.after)
    checks = {
        "log probabilities": near(gap(got.rows, right.rows), 8),
        "finish reason": got.last.finish_reason == "length",
        "tokens that are held": got.last.all_tokens == row.prompt + right.tokens,
        "cache": after < ROUNDING or near(after, 128),
        "statistics": are_told(row, got),
    }
    return [check for check, holds in checks.items() if not holds]


def are_told(row: Row, got: Answer) -> bool:
    """Whether the statistics of a row match its script, with one forward pass for each block."""
    n_right, stats = sum(got.drafted), got.stats
    if row.share is None:
        return n_right == 0 and stats is None
    assert stats is not None
    counted = bool(stats.accepted == n_right <= stats.drafted and stats.forwards <= row.n + 1 - n_right)
    return counted and (n_right > 0) == (row.share > 0) and stats.drafted > 0 and stats.reason is None


def check_ends(family: str) -> None:
    """A batch of rows that end at every place of the first blocks, by a limit or a stop sequence."""
    requests = []
    for n in range(1, 2 * DRAFT):
        limited, right = asked(family, 3 + n, 30, 1.0)
        stopped, _ = asked(family, 3 + n, 30, 1.0, stop=right.tokens[max(n - 2, 0) : n])
        limited.max_tokens = n
        requests += [(limited, right), (stopped, right)]
    for got in check_alone(family, requests):
        # What a row accepted behind its end is not counted.
        assert got.stats
        assert got.stats.accepted == sum(got.drafted)


def check_cancels(family: str) -> None:
    """A row is cancelled after each of the first steps, mostly with a block under way. The others decode as alone."""
    for n_steps in range(1, 6):
        generator = BatchGenerator(model_of(family).model, draft_costs=FREE)
        rights = {insert(generator, request): right.tokens for request, right in others(family)}
        got: dict[int, list[int]] = {uid: [] for uid in rights}
        cancelled = max(rights)
        for step in count():
            if step == n_steps:
                generator.remove([cancelled])
            responses = generator.next()[1]
            for response in responses:
                got[response.uid].append(response.token)
            if step > n_steps and not responses:
                break
        for uid in rights.keys() - {cancelled}:
            assert got[uid] == rights[uid][:20]


def check_alone(
    family: str, requests: list[tuple[Request, Alone]], generator: BatchGenerator | None = None
) -> list[Answer]:
    """The answers to requests that come at the same time, which are what they are alone."""
    generator = generator or BatchGenerator(model_of(family).model, draft_costs=FREE)
    found = answers(generator, [request for request, _ in requests])
    for (request, right), got in zip(requests, found, strict=True):
        check_answer(family, request, right, got)
    return found


def check_draws(family: str) -> None:
    """Each sampler and logits processor runs once for each token, in order, and sees only its row."""
    kinds = product((None, 0.0, 0.5, 1.0), (0.0, 1.0), (False, True))
    requests = [asked(family, 1 + i, 12, *kind) for i, kind in enumerate(kinds)]
    check_alone(family, requests)
    for request, right in requests:
        text = [*request.prompt, *right.tokens]
        for processor in request.processors:
            histories = processor.histories
            assert len(histories) >= 12
            assert histories == [text[: len(request.prompt) + i] for i in range(len(histories))]


def others(family: str) -> list[tuple[Request, Alone]]:
    """A row that accepts half of its drafts, one that accepts nothing, and a sampled one without drafts."""
    return [asked(family, 21, 20, 0.5), asked(family, 6, 20, 0.0), asked(family, 9, 20, None, 1.0)]


def check_failure(part: str, at: int, n_broken: int = 1) -> None:
    """A row whose sampler, processor or strategy raises ends with that error. The other rows decode as alone."""
    generator = BatchGenerator(model_of("llama").model, draft_costs=FREE, rows_fail_alone=True)
    broken = [asked("llama", 4, 40, 1.0) for _ in range(n_broken)]
    for request, _ in broken:
        break_part(request, part, at)
    rest = others("llama") if n_broken == 1 else []
    got = answers(generator, [request for request, _ in broken + rest])
    for answer, (_, right) in zip(got, broken, strict=False):
        assert answer.last.finish_reason == "error"
        assert isinstance(answer.last.error, Broken) or isinstance(answer.last.error.__cause__, Broken)
        assert answer.tokens == right.tokens[: len(answer.tokens)]
        assert part not in ("sampler", "processor") or len(answer.tokens) <= at
    for answer, (request, right) in zip(got[n_broken:], rest, strict=True):
        check_answer("llama", request, right, answer)
    # The failure leaves no trace for the next request.
    check_alone("llama", others("llama"), generator)
