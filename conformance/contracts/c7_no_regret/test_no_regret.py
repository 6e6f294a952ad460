"""Drafting runs no extra passes to measure costs, and holds no memory for that."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from multiprocessing import get_context
from operator import mul
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.draft import BlockCosts, SuffixStrategy, costs
from mlx_lm.draft.model import block_costs
from mlx_lm.generate import generate_step, prompt_lookup_generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.lab.simulate.__main__ import decode
from conformance.lab.texts.recorded_streams import bpe, corpus, stream
from conformance.oracle.recorder import fed
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.families import GENERATE
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
    forwards: int = 0
    accepted: int = 0


def respond(model: Any, tokenizer: Any, prompt: list[int], **drafting: Any) -> Response:
    made = Response()
    with fed(model) as made.blocks:
        for response in stream_generate(model, tokenizer, prompt, max_tokens=48, **drafting):
            made.before_the_first = made.before_the_first or len(made.blocks)
            made.tokens.append(response.token)
    if response.draft is not None:
        made.forwards, made.accepted = response.draft.forwards, response.draft.accepted
    return made


def calibrate() -> None:
    """A fault: the first response measures the costs of blocks."""
    learned = GENERATE.block_costs

    def measured(model: Any, *kv_bits: Any) -> Any:
        if not hasattr(model, "_block_costs"):
            for n_tokens in (1, 2, 4, 8, 16):
                mx.eval(model(mx.zeros((1, n_tokens), mx.uint32), cache=make_prompt_cache(model)))
        return learned(model, *kv_bits)

    GENERATE.block_costs = measured  # type: ignore[attr-defined]


def read_ahead() -> None:
    """A fault: another forward pass before the first token."""
    steps = GENERATE.draft_generate_step

    def late(prompt: mx.array, verifier: Any, *args: Any, **kwargs: Any) -> Any:
        verifier.model(prompt[None, -1:], cache=make_prompt_cache(verifier.model))
        return steps(prompt, verifier, *args, **kwargs)

    GENERATE.draft_generate_step = late  # type: ignore[attr-defined]


def first_responses(fault: Callable[[], None] | None) -> list[Response]:
    """A plain response and two drafted ones, of a process that has decoded nothing before."""
    if fault is not None:
        fault()
    # With a stopped clock no costs are learned, so the second response drafts as the first one.
    costs.time = SimpleNamespace(perf_counter=lambda: 0.0)
    model, tokenizer = load(str(FIXTURE))
    prompt = ids(tokenizer, "rename")
    return [respond(model, tokenizer, prompt, **options) for options in ({}, *2 * [{"draft_type": "auto"}])]


def responses(fault: Callable[[], None] | None = None) -> list[Response]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(first_responses, fault).result()


def complaints(plain: Response, first: Response, second: Response) -> list[str]:
    """The extra work of the first drafted response."""
    n_prompt = len(first.blocks) - first.forwards
    checks = {
        "tokens": plain.tokens == first.tokens == second.tokens,
        "more calls than plain decoding": len(first.blocks) <= len(plain.blocks),
        "more calls than the second": first.blocks == second.blocks,
        "more calls before the first token": first.before_the_first <= plain.before_the_first,
        # Each pass gives one undrafted token, including the one after the last token.
        "passes that do not decode": first.forwards == len(first.tokens) - first.accepted + 1
        and first.blocks[:n_prompt] == plain.blocks[:n_prompt],
    }
    return [check for check, holds in checks.items() if not holds]


def test_the_first_response_is_as_the_second() -> None:
    plain, first, second = responses()
    assert complaints(plain, first, second) == []
    assert first.accepted > 0


@pytest.mark.planted
@pytest.mark.parametrize("fault", [calibrate, read_ahead])
def test_a_pass_that_does_not_decode_is_found(fault: Callable[[], None]) -> None:
    assert complaints(*responses(fault)) != []


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


def wide_model() -> Any:
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | WIDE}):
        return build("llama")


def complaints_of_memory() -> list[str]:
    model = wide_model()
    plain, drafted = held(model, drafts=False), held(model, drafts=True)
    return [] if drafted < 1.05 * plain else [f"{drafted} bytes are held where plain decoding holds {plain}"]


@pytest.mark.usefixtures("uncompiled")
def test_no_more_memory_is_held_than_by_plain_decoding() -> None:
    assert complaints_of_memory() == []


@pytest.mark.planted
@pytest.mark.usefixtures("uncompiled")
def test_the_logits_of_the_prompt_that_are_held_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, steps = [], GENERATE.draft_generate_step

    def hold(prompt: mx.array, verifier: Any, *args: Any, **kwargs: Any) -> Any:
        model = verifier.model

        def kept(inputs: mx.array, cache: Any) -> mx.array:
            made: mx.array = model(inputs, cache=cache)
            logits.append(made)
            return made

        verifier.model = kept
        return steps(prompt, verifier, *args, **kwargs)

    monkeypatch.setattr(GENERATE, "draft_generate_step", hold)
    assert complaints_of_memory() != []


# The costs of blocks of the fixture on a CPU, with a plain cache and with --kv-bits 8. With that a token takes five
# times as long.
PLAIN = BlockCosts((1, 2, 4, 8, 16), (1, 1.14, 1.58, 2.42, 4.18))
QUANTIZED = BlockCosts((1, 2, 4, 8, 16), (1, 1.8, 3.42, 6.7, 13.53))


def speeds_with_a_quantized_cache(model: Any) -> list[float]:
    """The speed of each response with a quantized cache, after one with a plain cache of the same model."""
    found = []
    for name, seed in product(("rename", "chat", "echo", "json", "code", "prose", "ambiguous"), range(3)):
        request = stream(name, 300, seed, corpus(), bpe()).requests[0]
        vars(model).pop("_block_costs", None)
        for truth, kv_bits, pass_of_one in ((PLAIN, None, 0.004), (QUANTIZED, 8, 0.02)):
            seconds = partial(mul, pass_of_one)
            learned = block_costs(model, kv_bits)
            result, _ = decode(SuffixStrategy(), request, truth, learned=learned, clock=seconds)
        found.append(result.speed)
    return found


def test_a_quantized_cache(fixture: tuple[Any, Any]) -> None:
    """Its blocks cost nearly as much as their tokens. These costs are learned apart from those of a plain cache."""
    assert min(speeds_with_a_quantized_cache(fixture[0])) > 0.97


@pytest.mark.planted
def test_costs_of_another_cache_are_found(fixture: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    apart = block_costs
    monkeypatch.setattr(sys.modules[__name__], "block_costs", lambda model, _: apart(model))
    assert min(speeds_with_a_quantized_cache(fixture[0])) < 0.9
