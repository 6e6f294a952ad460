"""What drafting costs the other rows of a batch: tox run -e micro

The suite runs each test once, without timing. No test asserts a time. ``--benchmark-json=FILE`` also records the peak
of the memory of a batch, as ``peak_bytes``.
"""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats, EditStrategy
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import llama

from conformance.testing.decode.batches import FREE, Request, insert
from conformance.testing.drafts.backward_scan import text
from conformance.testing.drafts.wrong import Wrong
from conformance.testing.models.families import model_of


@pytest.mark.parametrize("n", [1_000, 100_000])
@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_a_row_joins(benchmark: Any, drafted: bool, n: int) -> None:
    """Three steps of a row, in which another one joins, whose prompt of so many tokens was in a cache."""
    benchmark.group = f"three steps, a row of {n} tokens joins"
    model, held = model_of("llama").model, [token % 64 for token in text(n)]

    def start() -> tuple[tuple[BatchGenerator], dict[str, Any]]:
        generator = BatchGenerator(model, draft_costs=FREE)
        insert(generator, Request([1, 2, 3], 64))
        for _ in range(4):
            generator.next()
        planner = Planner(EditStrategy(), 8, DraftStats(), FREE) if drafted else None
        generator.insert([[5]], [64], all_tokens=[held], planners=[planner])
        return (generator,), {}

    def steps(generator: BatchGenerator) -> None:
        for _ in range(3):
            generator.next()

    benchmark.pedantic(steps, setup=start, rounds=15, warmup_rounds=1)


@pytest.mark.parametrize("n_draft", [0, 4, 31])
def test_the_peak_of_a_large_vocabulary(benchmark: Any, n_draft: int) -> None:
    """Eight rows with drafts that are all wrong, and logits of 100,000 tokens."""
    benchmark.group = "eight rows, a vocabulary of 100,000"
    n_vocab = 100_000 if benchmark.enabled else 1_000
    args = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
    args |= {"num_attention_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": n_vocab}
    model = llama.Model(llama.ModelArgs(**args))
    mx.eval(model.parameters())

    def decode() -> None:
        generator = BatchGenerator(model, draft_costs=FREE)
        for row in range(8):
            strategy = Wrong(n_vocab - 1) if n_draft else None
            insert(generator, Request([1, 2, row], 40, strategy, num_draft_tokens=n_draft))
        for _ in range(5):
            generator.next()

    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    benchmark.pedantic(decode, rounds=2)
    benchmark.extra_info["peak_bytes"] = mx.get_peak_memory() - before
