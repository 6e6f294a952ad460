"""What a batch costs: a sampler that rows share is called as often as in the release, and what is kept is no block.

With drafts it needs no more memory than plain batching and one block.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generation_stream, prompt_lookup_generate_step
from mlx_lm.sample_utils import greedy_sampler

from conformance.doors.batch import DRAFT, FREE, VOCAB, Alone, Broken, Request, breaking, insert
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


# Far from the lengths at which the caches grow.
CONTEXT, LONG = 900, 24


def measured(requests: list[Request]) -> tuple[int, int]:
    """The bytes that a batch holds after its answers, and its peak above the memory of the first pass."""
    gc.collect()
    mx.clear_cache()
    before, generator = mx.get_active_memory(), BatchGenerator(PLAIN.model, draft_costs=FREE, prefill_step_size=256)
    for request in requests:
        insert(generator, request)
    held, n = 0, 0
    while responses := generator.next_generated():
        n += len(responses)
        if held == 0:
            mx.reset_peak_memory()
        if n <= ROWS * (LONG - 2):
            held = mx.get_active_memory() - before
    assert n == ROWS * LONG
    return held, mx.get_peak_memory() - before


def block_bytes(args: Any) -> int:
    """The bytes of one block in float32: keys, values, attention weights of all heads, activations and logits."""
    width = 2 * args.num_hidden_layers * args.hidden_size + args.num_attention_heads * (CONTEXT + 256)
    width += 4 * args.intermediate_size + 8 * args.hidden_size + 4 * VOCAB
    return 4 * ROWS * (1 + DRAFT) * int(width)


def test_no_more_than_plain_batching_and_a_block() -> None:
    prompts = [[(7 * i + row) % VOCAB for i in range(CONTEXT + row)] for row in range(ROWS)]
    drafted, undrafted = ([PLAIN.ask(prompt, LONG, share)[0] for prompt in prompts] for share in (0.5, None))
    for request in drafted:
        request.costs = FREE
    most = block_bytes(PLAIN.model.args)
    whats = ("holds", "needs for a moment")
    for what, with_drafts, without in zip(whats, measured(drafted), measured(undrafted), strict=True):
        assert with_drafts <= without + most, f"it {what} {with_drafts - without} bytes more, and a block has {most}"
