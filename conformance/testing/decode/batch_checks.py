"""Rows of a batch with drafts decode as they do alone. These checks compare the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import BatchGenerator

from conformance.testing.decode.batch_programs import CLOSE, CLOSE_AFTER
from conformance.testing.decode.batches import (
    DRAFT,
    FREE,
    VOCAB,
    Alone,
    Answer,
    Broken,
    Drawing,
    Partly,
    Request,
    Watching,
    alone,
    answers,
    break_part,
    until,
)
from conformance.testing.decode.recorder import Recording, Task, gap, next_turn, plain
from conformance.testing.decode.replay import noises
from conformance.testing.models.architectures import build, make_cache
from conformance.testing.models.families import model_of


@dataclass(frozen=True)
class Row:
    """A request, and the share of each draft that is right. None means no drafts."""

    length: int
    share: float | None
    n: int

    @property
    def prompt(self) -> list[int]:
        return [(7 * i + 3 * self.length) % VOCAB for i in range(self.length)]

    @property
    def task(self) -> Task:
        return Task(tuple(self.prompt), self.n)


# The first prompt fills the windows and chunks of the tiny configurations. The other rows fill them with their answers.
ROWS = (Row(21, 1.0, 30), Row(3, 0.5, 20), Row(9, 0.0, 10), Row(14, None, 10))
# Upstream model faults, with and without drafts. This model computes a wrong block once its window is full:
SHORT = {"plamo3": (Row(5, 1.0, 9), Row(3, 0.5, 9), Row(2, 0.0, 6), Row(1, None, 6))}
# These treat padding as tokens. A batch of several lengths differs from its rows alone, with and without drafts alike.
PADDED = {"baichuan_m1", "bailing_moe_linear", "jamba", "longcat_flash_ngram"}
PADDED |= {"internlm2", "internlm3", "mamba", "recurrent_gemma", "rwkv7"}
# In 0.32.1, models in which a row that joins others differs from the row alone.
RELEASE = mlx_lm.__version__.split("+")[0]

NOT_JOINED = {"mamba2", "falcon_h1"} if RELEASE == "0.32.1" else set[str]()
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
    model = build(name)
    rights = [plain(model, row.task) for row in rows_of(name)]
    together = serve(name, model, rights, drafted=False)
    alike = all(one.tokens == right.tokens for one, right in zip(together, rights, strict=True))
    if name in PADDED:
        # The tokens may be the same by chance.
        alike = alike and all(gap(one.rows, right.rows) < ROUNDING for one, right in zip(together, rights, strict=True))
    found = ["a batch without drafts"] if alike == (name in PADDED) else []
    if name in PADDED:
        rights = [
            Recording(one.tokens, one.rows, next_turn(model, one.last.prompt_cache, row.task.after))
            for row, one in zip(rows_of(name), together, strict=True)
        ]
    drafted = serve(name, model, rights, drafted=True)
    for row, right, without, got in zip(rows_of(name), rights, together, drafted, strict=True):
        found += [f"{what} of {row}" for what in complaints_of(model, row, right, without, got)]
    return found


def complaints_of(model: Any, row: Row, right: Recording, without: Answer, got: Answer) -> list[str]:
    if got.tokens != right.tokens:
        return ["tokens"]

    def near(distance: float, n_noises: int) -> bool:
        """Measuring the noise takes as long as the rest, so it is done only for a model that has some."""
        if distance <= n_noises * gap(without.rows, right.rows):
            return True
        return any(distance <= n_noises * one for one in noises(model, row.task, right))

    after = gap(next_turn(model, got.last.prompt_cache, row.task.after), right.after)
    checks = {
        "log probabilities": near(gap(got.rows, right.rows), 8),
        "finish reason": got.last.finish_reason == without.last.finish_reason == "length",
        "tokens that are held": got.last.all_tokens == row.prompt + right.tokens,
        "cache": after < ROUNDING or near(after, 128),
        "statistics": are_told(row, got),
    }
    return [check for check, holds in checks.items() if not holds]


def are_told(row: Row, got: Answer) -> bool:
    """Whether the statistics of a row match its script, with one forward pass for each block."""
    n_right, stats = sum(got.drafted), got.last.draft
    if row.share is None:
        return n_right == 0 and stats is None
    counted = bool(stats.accepted == n_right <= stats.drafted and stats.forwards <= row.n + 1 - n_right)
    return counted and (n_right > 0) == (row.share > 0) and stats.drafted > 0 and stats.reason is None


@cache
def right_of(
    family: str, length: int, temperature: float = 0, processed: bool = False, n: int = 30
) -> tuple[list[int], Alone]:
    """A prompt, and its answer alone."""
    prompt = Row(length, None, 0).prompt
    processors = [Watching()] if processed else []
    return prompt, alone(model_of(family).model, prompt, n, temperature, processors)


def holds(model: Any, answer: Answer, prompt: list[int], right: list[int]) -> bool:
    """Whether the cache of an answer holds the prompt and the answer."""
    layers = make_cache(model)
    model(mx.array([prompt + right]), cache=layers)
    near = gap(next_turn(model, answer.last.prompt_cache), next_turn(model, layers)) < CLOSE_AFTER
    return near and answer.last.all_tokens == prompt + right


def check_ends(family: str) -> None:
    """A batch of rows that end at every place of the first blocks, by a limit or a stop sequence."""
    model, requests = model_of(family).model, []
    for n in range(1, 2 * DRAFT):
        prompt, right = right_of(family, 3 + n)
        script = prompt + right.tokens
        stop = right.tokens[max(n - 2, 0) : n]
        requests += [Request(prompt, n, Partly(script, 1.0)), Request(prompt, 30, Partly(script, 1.0), stop=stop)]
    for request, got in zip(requests, answers(BatchGenerator(model, draft_costs=FREE), requests), strict=True):
        prompt, right = right_of(family, len(request.prompt))
        tokens, reason = until(right.tokens, request.max_tokens, request.stop)
        # What a row accepted behind its end is not counted.
        assert got.last.draft.accepted == sum(got.drafted)
        assert (got.tokens, got.last.finish_reason) == (tokens, reason)
        assert holds(model, got, prompt, tokens)


def check_draws(family: str) -> None:
    """Each sampler and logits processor runs once for each token, in order, and sees only its row."""
    model, n = model_of(family).model, 12
    kinds = [(t, p, s) for t in (0.0, 1.0) for p in (False, True) for s in (None, 0.0, 0.5, 1.0)]
    requests = []
    for i, (temperature, processed, share) in enumerate(kinds):
        prompt, right = right_of(family, 1 + i, temperature, processed)
        script = None if share is None else Partly(prompt + right.tokens, share)
        sampler, processors = Drawing(temperature) if temperature else None, [Watching()] if processed else []
        requests.append(Request(prompt, n, script, sampler, processors))
    got = answers(BatchGenerator(model, draft_costs=FREE), requests)
    for request, answer, (temperature, processed, _) in zip(requests, got, kinds, strict=True):
        prompt, right = right_of(family, len(request.prompt), temperature, processed)
        assert answer.tokens == right.tokens[:n]
        assert gap(answer.rows, right.rows[:n]) < CLOSE
        for processor in request.processors:
            shown = [prompt + right.tokens[:i] for i in range(n + 1)]
            assert n <= len(processor.histories)
            assert processor.histories == shown[: len(processor.histories)]


def others(family: str) -> list[tuple[Request, Alone]]:
    """A row that accepts half of its drafts, one that accepts nothing, and a sampled one without drafts."""
    found = []
    for length, share, temperature in ((21, 0.5, 0.0), (6, 0.0, 0.0), (9, None, 1.0)):
        prompt, right = right_of(family, length, temperature)
        script = None if share is None else Partly(prompt + right.tokens, share)
        found.append((Request(prompt, 20, script, Drawing(temperature) if temperature else None), right))
    return found


def check_failure(part: str, at: int, n_broken: int = 1) -> None:
    """A row whose sampler, processor or strategy raises ends with that error. The other rows decode as alone."""
    model = model_of("llama").model
    generator = BatchGenerator(model, draft_costs=FREE, rows_fail_alone=True)
    prompt, right = right_of("llama", 4, n=40)
    broken = [Request(prompt, 40, Partly(prompt + right.tokens, 1.0)) for _ in range(n_broken)]
    for request in broken:
        break_part(request, part, at)
    rest = others("llama") if n_broken == 1 else []
    got = answers(generator, [*broken, *(request for request, _ in rest)])
    for answer in got[:n_broken]:
        assert answer.last.finish_reason == "error"
        assert isinstance(answer.last.error, Broken) or isinstance(answer.last.error.__cause__, Broken)
        assert answer.tokens == right.tokens[: len(answer.tokens)]
        assert part not in ("sampler", "processor") or len(answer.tokens) <= at
    # The failure leaves no trace for the next request.
    for served, (request, alone_) in [*zip(got[n_broken:], rest, strict=True), *after(generator, rest)]:
        assert served.tokens == alone_.tokens[: request.max_tokens]
        assert served.last.finish_reason == "length"
        assert holds(model, served, list(request.prompt), served.tokens)


def after(generator: BatchGenerator, rest: list[tuple[Request, Alone]]) -> list[tuple[Answer, tuple[Request, Alone]]]:
    """Send the same requests to a generator again. Returns its answers."""
    again = others("llama")
    return list(zip(answers(generator, [request for request, _ in again]), again, strict=True))
