"""A batch calls a sampler that rows share as often as the release does, and a kept response holds no block."""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft.batch import DraftedBlock
from mlx_lm.generate import BatchGenerator, generation_stream, prompt_lookup_generate_step
from mlx_lm.sample_utils import greedy_sampler

from conformance.doors.batch import FREE, Broken, Request, answers, breaking
from conformance.drafters import Partly
from conformance.subjects.families import model_of

ROWS, TOKENS = 4, 12
PROMPTS = [[(7 * i + row) % 64 for i in range(12)] for row in range(ROWS)]


def sizes_of_calls() -> list[int]:
    """How many rows a sampler is called with that all rows share."""
    sizes: list[int] = []

    def sampler(logprobs: mx.array) -> mx.array:
        sizes.append(len(logprobs))
        return greedy_sampler(logprobs)

    answers(BatchGenerator(model_of("llama").model), [Request(p, TOKENS, sampler=sampler) for p in PROMPTS])
    return sizes


def test_a_shared_sampler_is_called_as_often_as_in_the_release() -> None:
    assert sizes_of_calls() == [ROWS] * (TOKENS + 1)


@pytest.mark.planted
def test_a_sampler_that_is_called_by_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    generate_init = BatchGenerator.__init__

    def always_guard(self: Any, *args: Any, **kwargs: Any) -> None:
        generate_init(self, *args, **kwargs, rows_fail_alone=True)

    monkeypatch.setattr(BatchGenerator, "__init__", always_guard)
    assert sizes_of_calls() != [ROWS] * (TOKENS + 1)


@pytest.mark.parametrize("drafted", [False, True])
def test_an_error_is_raised_to_the_caller_as_in_the_release(drafted: bool) -> None:
    script = Partly(PROMPTS[0] + [1] * TOKENS, 1.0) if drafted else None
    request = Request(PROMPTS[0], TOKENS, script, sampler=breaking(greedy_sampler, 3))
    with pytest.raises(Broken):
        answers(BatchGenerator(model_of("llama").model, draft_costs=FREE), [request, Request(PROMPTS[1], TOKENS)])


def wrong_shape(_: mx.array, logits: mx.array) -> mx.array:
    return logits[:, 1:]


def check_a_wrong_shape() -> None:
    """It ends its row only."""
    generator = BatchGenerator(model_of("llama").model, rows_fail_alone=True)
    requests = [Request(p, TOKENS, processors=[wrong_shape] if i == 1 else []) for i, p in enumerate(PROMPTS)]
    reasons = [answer.last.finish_reason for answer in answers(generator, requests)]
    assert reasons == ["length", "error", "length", "length"]


def test_a_wrong_shape_ends_its_row() -> None:
    check_a_wrong_shape()


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("token", [-1, 1 << 20, 1 << 40, 2.0])
def test_what_is_no_token_ends_its_row(token: float, drafted: bool) -> None:
    """The pass that takes it is under way before it is known, and must not read beside the weights."""
    generator = BatchGenerator(model_of("llama").model, draft_costs=FREE, rows_fail_alone=True)
    requests = [Request(p, TOKENS, Partly(p + [1] * TOKENS, 0.5) if drafted else None) for p in PROMPTS]
    requests[1].sampler = lambda _: mx.array([token])
    found = answers(generator, requests)
    assert [answer.last.finish_reason for answer in found] == ["length", "error", "length", "length"]
    assert found[1].tokens == []


@pytest.mark.planted
def test_a_shape_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("mlx_lm.generate"), "fail_alone", lambda function, *_: function)
    with pytest.raises((AssertionError, ValueError)):
        check_a_wrong_shape()


def batch() -> list[mx.array]:
    requests = [Request(p, TOKENS, Partly(p + [1] * TOKENS, 0.5), costs=FREE) for p in PROMPTS]
    found = answers(BatchGenerator(model_of("llama").model, draft_costs=FREE), requests)
    return [row for answer in found for row in answer.rows]


def single() -> list[mx.array]:
    model = model_of("llama").model
    steps = prompt_lookup_generate_step(
        mx.array(PROMPTS[0] * 3), model, max_tokens=ROWS * TOKENS, disable_adaptive_gate=True, num_draft_tokens=15
    )
    return [logprobs for _, logprobs, _ in steps]


def held(decode: Callable[[], list[mx.array]]) -> float:
    """The bytes that are freed with the log probabilities of an answer, by their own bytes."""
    rows = decode()
    mx.eval(rows)
    # A step that was computed ahead may still be under way.
    mx.synchronize(generation_stream)
    gc.collect()
    before, own = mx.get_active_memory(), sum(row.nbytes for row in rows)
    rows.clear()
    return float((before - mx.get_active_memory()) / own)


@pytest.mark.parametrize("decode", [batch, single])
def test_what_is_kept_holds_no_block(decode: Callable[[], list[mx.array]]) -> None:
    assert held(decode) < 1.5


@pytest.mark.planted
def test_rows_that_hold_their_block_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = DraftedBlock.draws

    def views(self: DraftedBlock, *args: Any) -> list[Any]:
        block = self._logits - mx.logsumexp(self._logits, axis=-1, keepdims=True)
        mx.eval(block)
        return [[(token, block[i, n]) for n, (token, _) in enumerate(row)] for i, row in enumerate(draws(self, *args))]

    monkeypatch.setattr(DraftedBlock, "draws", views)
    assert held(batch) > 1.5
