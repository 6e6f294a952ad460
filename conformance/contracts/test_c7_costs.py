"""Drafting runs no extra passes to measure costs, holds no memory for that, and learns from what it decodes anyway."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.draft import DraftStats, costs
from mlx_lm.draft.costs import LearnedCosts
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import (
    BatchGenerator,
    batch_generate,
    generate_step,
    prompt_lookup_generate_step,
    speculative_generate_step,
)
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.drafters import Partly
from conformance.oracle.recorder import Run, fed
from conformance.oracle.rows import FREE, Plain, prompt_of
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.decoded import unsteered
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


TOKENS = 60


def right(length: int = 9) -> Partly:
    """A drafter whose drafts are all right, for a prompt of so many tokens."""
    return Partly(Plain(unsteered("llama")).answer(tuple(prompt_of(length)), TOKENS).text, 1.0)


def alone(**options: Any) -> None:
    options |= {"draft_strategy": right(), "num_draft_tokens": 4}
    assert (
        len(Run(prompt_of(9)).loop(speculative_generate_step, unsteered("llama"), TOKENS, **options).tokens) == TOKENS
    )


def joining(draft_costs: LearnedCosts) -> None:
    """One row after another joins a batch."""
    generator = BatchGenerator(unsteered("llama"), draft_costs=draft_costs)
    for length in (9, 10, 11):
        generator.insert([prompt_of(length)], [TOKENS], planners=[Planner(right(length), 4, DraftStats())])
        for _ in range(4):
            generator.next()


@contextmanager
def a_second_a_token() -> Iterator[list[tuple[LearnedCosts, int, float]]]:
    """A clock on which a pass takes a second for each of its tokens, and what is learned from it, by whom."""
    learned = list[tuple[LearnedCosts, int, float]]()
    with (
        fed(unsteered("llama")) as blocks,
        patch.object(costs, "time", SimpleNamespace(perf_counter=lambda: float(sum(blocks)))),
        patch.object(LearnedCosts, "learn", lambda one, n, seconds, *_: learned.append((one, n, seconds))),
    ):
        yield learned


@pytest.mark.parametrize("decode", [joining, partial(alone, draft_margin=0.1)], ids=["rows that join", "near ties"])
def test_a_pass_beside_others_teaches_nothing(decode: Callable[..., None]) -> None:
    """That of a row that joins, or of a token that is a near tie."""
    with a_second_a_token() as learned:
        decode(draft_costs=LearnedCosts(FREE))
    assert sum(n > 1 for _, n, _ in learned) > 2
    for _, n, seconds in learned:
        # Plain decoding begins the next pass before it reads a token, and the clock then shows both.
        assert n <= seconds <= n + (n == 1), f"the time of {seconds} tokens is learned for {n}"


def test_a_quantized_cache_has_costs_of_its_own() -> None:
    """Its blocks cost nearly as much as their tokens, which a plain cache would be wrong about."""
    learners = list[set[LearnedCosts]]()
    for options in ({}, {"kv_bits": 8, "kv_group_size": 32}):
        with a_second_a_token() as learned:
            alone(**options)
        learners.append({one for one, *_ in learned})
    assert all(learners)
    assert not set.intersection(*learners), "the times of both caches are learned together"


@pytest.mark.parametrize("drafting", [{}, {"draft": "auto"}, {"draft": "ngram-mod"}], ids=str)
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
def test_drafts_on_cuda_turn_off_its_slow_attention(
    drafting: Any, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first pass, and nobody else does: mlx reads the variable once."""
    name = "MLX_CUDA_USE_CUDNN_SDPA"
    monkeypatch.setattr("mlx_lm.draft.model._accelerator", lambda: "cuda")
    # The test forgets what is set in it.
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    model, tokenizer = load(str(FIXTURE))
    prompt = ids(tokenizer, "rename")
    with fed(model, lambda *_, **__: os.environ.get(name)) as found:
        if batch:
            batch_generate(model, tokenizer, [prompt], max_tokens=2, **drafting)
        else:
            list(stream_generate(model, tokenizer, prompt, max_tokens=2, **drafting))
    assert set(found) == ({"0"} if drafting else {None}), f"passes of {drafting} find {set(found)}"
