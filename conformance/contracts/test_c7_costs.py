"""Drafting runs no extra passes to measure costs, and holds no memory for that."""

from __future__ import annotations

import gc
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.draft import costs
from mlx_lm.generate import generate_step, prompt_lookup_generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.oracle.recorder import Run, fed
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.prompts import ids

pytestmark = pytest.mark.usefixtures("uncompiled")


def test_the_first_response_is_as_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a stopped clock no costs are learned, so the second response drafts as the first one.
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    # A model that has decoded nothing before.
    model, tokenizer = load(str(FIXTURE))
    prompt, found = ids(tokenizer, "rename"), list[Run]()
    for drafting in ({}, *2 * [{"draft_type": "auto"}]):
        found.append(run := Run())
        with fed(model) as run.blocks:
            run.take(stream_generate(model, tokenizer, prompt, max_tokens=48, **drafting))
    plain, first, second = found
    assert plain.tokens == first.tokens == second.tokens
    assert first.blocks == second.blocks, f"the first response feeds {first.blocks}, the second {second.blocks}"
    # Each pass gives one undrafted token, including the one after the last token. Those of the prompt are no others.
    stats, n = first.stats, len(first.tokens)
    assert stats.accepted > 0
    assert stats.forwards == n - stats.accepted + 1, f"{stats.forwards} passes, {stats.accepted} accepted"
    n_prompt = len(first.blocks) - stats.forwards
    assert first.blocks[:n_prompt] == plain.blocks[:n_prompt]


def held(model: Any, decode: Any) -> int:
    """The bytes that generation holds at its third token, after a prompt longer than a chunk."""
    gc.collect()
    before, cache = mx.get_active_memory(), make_prompt_cache(model)
    steps = decode(mx.array([(7 * i) % 64 for i in range(1200)]), model, max_tokens=-1, prompt_cache=cache)
    kept = list(islice(steps, 3))
    mx.eval([row for _, row, *_ in kept])
    mx.synchronize()
    gc.collect()
    bytes_held: int = mx.get_active_memory() - before
    steps.close()
    return bytes_held


def test_no_more_memory_is_held_than_by_plain_decoding() -> None:
    # So wide that the logits of one chunk are visible in its memory.
    wide = {"hidden_size": 256, "intermediate_size": 512, "layer_types": None, "sliding_window": None, "head_dim": 32}
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | wide}):
        model = build("llama")
    plain, drafted = (held(model, decode) for decode in (generate_step, prompt_lookup_generate_step))
    assert drafted < 1.05 * plain, f"{drafted} bytes are held where plain decoding holds {plain}"
