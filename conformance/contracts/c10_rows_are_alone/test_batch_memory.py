"""A batch with drafts needs no more memory than plain batching and one block."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from conformance.doors.batch import DRAFT, FREE, VOCAB, Request, insert
from conformance.oracle.rows import Plain
from conformance.subjects.families import model_of

# Far from the lengths at which the caches grow.
CONTEXT, ROWS, TOKENS = 900, 4, 24


def measured(requests: list[Request], model: Any) -> tuple[int, int]:
    """The bytes that a batch holds after its answers, and its peak above the memory of the first pass."""
    gc.collect()
    mx.clear_cache()
    before, generator = mx.get_active_memory(), BatchGenerator(model, draft_costs=FREE, prefill_step_size=256)
    for request in requests:
        insert(generator, request)
    held, n = 0, 0
    while responses := generator.next_generated():
        n += len(responses)
        if held == 0:
            mx.reset_peak_memory()
        if n <= ROWS * (TOKENS - 2):
            held = mx.get_active_memory() - before
    assert n == ROWS * TOKENS
    return held, mx.get_peak_memory() - before


def block_bytes(args: Any) -> int:
    """The bytes of one block in float32: keys, values, attention weights of all heads, activations and logits."""
    width = 2 * args.num_hidden_layers * args.hidden_size + args.num_attention_heads * (CONTEXT + 256)
    width += 4 * args.intermediate_size + 8 * args.hidden_size + 4 * VOCAB
    return 4 * ROWS * (1 + DRAFT) * int(width)


def test_no_more_than_plain_batching_and_a_block() -> None:
    plain = Plain(model_of("llama").model)
    prompts = [[(7 * i + row) % VOCAB for i in range(CONTEXT + row)] for row in range(ROWS)]
    drafted, undrafted = ([plain.ask(prompt, TOKENS, share)[0] for prompt in prompts] for share in (0.5, None))
    for request in drafted:
        request.costs = FREE
    most = block_bytes(plain.model.args)
    for what, with_drafts, without in zip(
        ("holds", "needs for a moment"), measured(drafted, plain.model), measured(undrafted, plain.model), strict=True
    ):
        assert with_drafts <= without + most, f"it {what} {with_drafts - without} bytes more, and a block has {most}"
