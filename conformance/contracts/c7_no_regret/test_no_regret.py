"""Drafting runs no extra passes to measure costs, and holds no memory for that."""

from __future__ import annotations

import gc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
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
from conformance.oracle.recorder import fed
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.prompts import ids

# A prompt longer than a chunk, and a model so wide that the logits of one chunk are visible in its memory.
PROMPT = [(7 * i) % 64 for i in range(1200)]
WIDE = {"hidden_size": 256, "intermediate_size": 512, "layer_types": None, "sliding_window": None, "head_dim": 32}


@dataclass
class Response:
    """The length of each block of a response, and the number of blocks before the first token."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    before_the_first: int = 0
    draft: Any = None


def respond(model: Any, tokenizer: Any, prompt: list[int], **drafting: Any) -> Response:
    made = Response()
    with fed(model) as made.blocks:
        for response in stream_generate(model, tokenizer, prompt, max_tokens=48, **drafting):
            made.before_the_first = made.before_the_first or len(made.blocks)
            made.tokens.append(response.token)
            made.draft = response.draft
    return made


def responses() -> list[Response]:
    """A plain response and two drafted ones, of a process that has decoded nothing before."""
    # With a stopped clock no costs are learned, so the second response drafts as the first one.
    costs.time = SimpleNamespace(perf_counter=lambda: 0.0)
    model, tokenizer = load(str(FIXTURE))
    prompt = ids(tokenizer, "rename")
    return [respond(model, tokenizer, prompt, **options) for options in ({}, *2 * [{"draft_type": "auto"}])]


def test_the_first_response_is_as_the_second() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        plain, first, second = process.submit(responses).result()
    assert plain.tokens == first.tokens == second.tokens
    assert first.draft.accepted > 0
    a, b = first.before_the_first, plain.before_the_first
    assert a <= b, f"{a} passes before the first token, and {b} in plain decoding"
    assert first.blocks == second.blocks, f"the first response feeds {first.blocks}, the second {second.blocks}"
    a, b = len(first.blocks), len(plain.blocks)
    assert a <= b, f"{a} passes, and {b} in plain decoding"
    # Each pass gives one undrafted token, including the one after the last token.
    a, b = first.draft.forwards, len(first.tokens) - first.draft.accepted + 1
    assert a == b, f"{a} passes for {b} tokens that were not drafted"
    n_prompt = len(first.blocks) - first.draft.forwards
    assert first.blocks[:n_prompt] == plain.blocks[:n_prompt]


def held(model: Any, drafts: bool) -> int:
    """The bytes that generation holds at its third token."""
    gc.collect()
    before, cache = mx.get_active_memory(), make_prompt_cache(model)
    decode = prompt_lookup_generate_step if drafts else generate_step
    steps = decode(mx.array(PROMPT), model, max_tokens=-1, prompt_cache=cache)
    kept = list(islice(steps, 3))
    mx.eval([row for _, row, *_ in kept])
    mx.synchronize()
    gc.collect()
    bytes_held: int = mx.get_active_memory() - before
    steps.close()
    return bytes_held


@pytest.mark.usefixtures("uncompiled")
def test_no_more_memory_is_held_than_by_plain_decoding() -> None:
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | WIDE}):
        model = build("llama")
    plain, drafted = held(model, drafts=False), held(model, drafts=True)
    assert drafted < 1.05 * plain, f"{drafted} bytes are held where plain decoding holds {plain}"
