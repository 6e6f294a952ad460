"""A batch calls a sampler that rows share as often as the release does, and a kept response holds no block."""

from __future__ import annotations

import gc
from collections.abc import Callable

import mlx.core as mx
import pytest
from mlx_lm.generate import generation_stream, prompt_lookup_generate_step
from mlx_lm.sample_utils import greedy_sampler

from conformance.doors.batch import FREE, Alone, Broken, Request, breaking
from conformance.oracle.rows import Plain, serve
from conformance.subjects.families import model_of

ROWS, TOKENS = 4, 12
PROMPTS = [[(7 * i + row) % 64 for i in range(12)] for row in range(ROWS)]
PLAIN = Plain(model_of("llama").model)


def rows(share: float | None = None) -> list[tuple[Request, Alone]]:
    return [PLAIN.ask(prompt, TOKENS, share) for prompt in PROMPTS]


def test_a_shared_sampler_is_called_as_often_as_in_the_release() -> None:
    sizes: list[int] = []

    def sampler(logprobs: mx.array) -> mx.array:
        sizes.append(len(logprobs))
        return greedy_sampler(logprobs)

    asked = rows()
    for request, _ in asked:
        request.sampler = sampler
    serve(PLAIN, asked)
    assert sizes == [ROWS] * (TOKENS + 1), f"a sampler that all {ROWS} rows share was called with {sizes} rows"


@pytest.mark.parametrize("share", [None, 1.0])
def test_an_error_is_raised_to_the_caller_as_in_the_release(share: float | None) -> None:
    asked = rows(share)
    asked[0][0].sampler = breaking(greedy_sampler, 3)
    with pytest.raises(Broken):
        serve(PLAIN, asked, draft_costs=FREE)


def check_an_end(row: int, asked: list[tuple[Request, Alone]]) -> None:
    """One row of several ends with an error, before its first token. The others are alone."""
    found = serve(PLAIN, asked, may_fail=[row], draft_costs=FREE, rows_fail_alone=True)
    assert found[row].last.finish_reason == "error"
    assert found[row].tokens == []


def test_a_wrong_shape_ends_its_row() -> None:
    asked = rows()
    asked[1][0].processors = [lambda _, logits: logits[:, 1:]]
    check_an_end(1, asked)


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize("token", [-1, 1 << 20, 1 << 40, 2.0])
def test_what_is_no_token_ends_its_row(token: float, share: float | None) -> None:
    """The pass that takes it is under way before it is known, and must not read beside the weights."""
    asked = rows(share)
    asked[1][0].sampler = lambda _: mx.array([token])
    check_an_end(1, asked)


def batch() -> list[mx.array]:
    return [logprobs for row in serve(PLAIN, rows(0.5), draft_costs=FREE) for logprobs in row.rows]


def single() -> list[mx.array]:
    steps = prompt_lookup_generate_step(
        mx.array(PROMPTS[0] * 3), PLAIN.model, max_tokens=ROWS * TOKENS, disable_adaptive_gate=True, num_draft_tokens=15
    )
    return [logprobs for _, logprobs, _ in steps]


@pytest.mark.parametrize("decode", [batch, single])
def test_what_is_kept_holds_no_block(decode: Callable[[], list[mx.array]]) -> None:
    """The bytes that are freed with the log probabilities of an answer are not much more than their own."""
    kept = decode()
    mx.eval(kept)
    # A step that was computed ahead may still be under way.
    mx.synchronize(generation_stream)
    gc.collect()
    before, own = mx.get_active_memory(), sum(row.nbytes for row in kept)
    kept.clear()
    freed = before - mx.get_active_memory()
    assert freed < 1.5 * own, f"log probabilities of {own} bytes hold {freed} bytes"
