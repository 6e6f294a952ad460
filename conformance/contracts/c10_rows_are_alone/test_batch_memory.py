"""The memory of a batch of four rows, with and without drafts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import BatchKVCache

from conformance.doors.batch import DRAFT, FREE, VOCAB, Request, alone, insert
from conformance.drafters import Partly
from conformance.subjects.families import model_of

# Far from the lengths at which the caches grow.
CONTEXT, ROWS, TOKENS = 900, 4, 24
Measured = tuple[int, int]


def prompt(row: int) -> list[int]:
    return [(7 * i + row) % VOCAB for i in range(CONTEXT + row)]


def measured(model: Any, right: list[list[int]] | None) -> Measured:
    """The bytes that a batch holds after its answers, and its peak above the memory of the first pass."""
    gc.collect()
    mx.clear_cache()
    before, generator = mx.get_active_memory(), BatchGenerator(model, draft_costs=FREE, prefill_step_size=256)
    for row in range(ROWS):
        drafter = right and Partly(right[row], 0.5)
        insert(generator, Request(prompt(row), TOKENS, drafter, costs=FREE if drafter else None))
    held, n = 0, 0
    while responses := generator.next_generated():
        n += len(responses)
        if held == 0:
            mx.reset_peak_memory()
        if n <= ROWS * (TOKENS - 2):
            held = mx.get_active_memory() - before
    assert n == ROWS * TOKENS
    return held, mx.get_peak_memory() - before


def block_bytes(model: Any) -> int:
    """The bytes of one block in float32: keys, values, attention weights of all heads, activations and logits."""
    args = model.args
    width = 2 * args.num_hidden_layers * args.hidden_size + args.num_attention_heads * (CONTEXT + 256)
    width += 4 * args.intermediate_size + 8 * args.hidden_size + 4 * VOCAB
    return 4 * ROWS * (1 + DRAFT) * int(width)


def complaints(model: Any) -> list[str]:
    right = [prompt(row) + alone(model, prompt(row), TOKENS).tokens for row in range(ROWS)]
    (held, peak), (plain, plain_peak) = measured(model, right), measured(model, None)
    most, found = block_bytes(model), []
    if held > plain + most:
        found.append(f"holds {held - plain} bytes more, a block has {most}")
    if peak > plain_peak + most:
        found.append(f"needs {peak - plain_peak} bytes more at most, a block has {most}")
    return found


def test_no_more_than_plain_batching_and_a_block() -> None:
    assert complaints(model_of("llama").model) == []


@pytest.mark.planted
def test_rows_that_are_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a trim keeps the rows that it drops."""
    trim: Callable[..., Any] = BatchKVCache.trim
    kept: list[Any] = []

    def keeping(self: Any, n: Any) -> Any:
        kept.append((mx.array(self.keys), mx.array(self.values)))
        mx.eval(kept[-1])
        return trim(self, n)

    monkeypatch.setattr(BatchKVCache, "trim", keeping)
    assert complaints(model_of("llama").model) != []
