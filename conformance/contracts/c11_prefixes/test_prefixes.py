"""Every architecture that cannot be trimmed, edited anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.draft.loop import Decoder
from mlx_lm.models.cache import ArraysCache, Checkpoint, LRUPromptCache, QuantizedKVCache
from mlx_lm.prefixes import Checkpoints

from conformance.contracts.c11_prefixes.requests import (
    AFTER_DRAFTS,
    ANSWER,
    EDITS,
    MOST,
    PROMPT,
    ROUNDING,
    Answer,
    Prefixes,
    edited,
    misplaced,
    plainly,
    untrimmable,
)
from conformance.doors.batch import CLOSE
from conformance.oracle.recorder import gap, next_turn
from conformance.subjects.architectures import CONFIGS, batched, build, make_cache
from conformance.subjects.families import GENERATE, K, model_of, mutant
from conformance.testing.decode.batch_checks import SHORT

pytestmark = pytest.mark.usefixtures("uncompiled")


def check_unchanged(taken: Answer, without: Answer) -> None:
    """Taking checkpoints changes no bit, and feeds the same tokens in the same parts."""
    assert (taken.tokens, taken.blocks, gap(taken.rows, without.rows)) == (without.tokens, without.blocks, 0)


def check(name: str, prefixes: Prefixes) -> None:
    # What the drafts are made of is not counted.
    prefixes.cold(PROMPT, ANSWER)
    for way, edits in ((plainly, EDITS), (prefixes.with_drafts, AFTER_DRAFTS)):
        without, taken = (prefixes.answer(way, PROMPT, most=most) for most in (0, MOST))
        check_unchanged(taken, without)
        assert misplaced(taken, name) == []
        assert prefixes.complaints(taken, edits) == []


@pytest.mark.parametrize("name", untrimmable())
def test_alone(name: str) -> None:
    check(name, Prefixes(build(name), ROUNDING.get(name, 0.0)))


# The others compute wrong blocks in the release too.
@pytest.mark.parametrize("name", [name for name in untrimmable() if name in batched() and name not in SHORT])
def test_together(name: str) -> None:
    """Rows of several lengths: without drafts, with drafts that are half right, and with right ones."""
    prefixes = Prefixes(build(name))
    prompts: dict[float | None, Sequence[int]] = {None: PROMPT, 0.5: PROMPT[4:45], 1.0: PROMPT[9:40]}
    for without, taken in zip(*(prefixes.together(prompts, most) for most in (0, MOST)), strict=True):
        check_unchanged(taken, without)
        assert misplaced(taken) + prefixes.complaints(taken, (16, 39), CLOSE) == []


# What is asked for next: the same, the next turn, an edited turn, an answer once more, another last token, and the same
# turn edited again.
CHANGES: list[Callable[[list[int]], list[int]]] = [
    lambda text: text,
    lambda text: [*text, 5, 6, 7, 8, 9],
    lambda text: [*text[:35], 1, 2, 3, *text[40:]],
    lambda text: text[:-ANSWER],
    lambda text: [*text[: -ANSWER - 1], 4],
    lambda text: [*text[:35], 1, 4],
]


@pytest.mark.parametrize("name", ["qwen3_next", "gemma3_text", "falcon_h1", "mamba2", "lfm2"])
def test_a_session(name: str) -> None:
    """Two conversations at a time, one with drafts, go on from what is stored as far as one of them did before."""
    prefixes, stored, known = Prefixes(build(name)), LRUPromptCache(max_checkpoints=64), set[tuple[int, ...]]([()])
    texts = [PROMPT, PROMPT[5:45]]
    for change in CHANGES:
        first, second = map(change, texts)
        answers = prefixes.together({None: first, 0.5: second}, MOST, stored)
        for got in answers:
            right = prefixes.cold(got.prompt, ANSWER)
            assert got.tokens == right.tokens
            assert gap(got.rows, right.rows) < CLOSE
            assert got.taken.n_cached == max(
                len(k) for k in known if k == tuple(got.prompt[: len(k)]) != tuple(got.prompt)
            )
        known |= {tuple(got.text[:n]) for got in answers for n in [*got.taken.taken, len(got.text)]}
        texts = [got.text for got in answers]


QUANTIZED = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
# Heads of 32 numbers, which quantization needs.
WIDE = {"qwen3_next": {"head_dim": 32}} | {name: {"num_attention_heads": 2} for name in ("lfm2", "jamba")}


@pytest.mark.parametrize("name", WIDE)
def test_quantized(name: str) -> None:
    with patch.dict(CONFIGS, {name: CONFIGS[name] | WIDE[name]}):
        prefixes = Prefixes(build(name), **QUANTIZED)
    layers = prefixes.answer(plainly, PROMPT).cache
    assert any(isinstance(layer, QuantizedKVCache) for layer in layers)
    check(name, prefixes)


@pytest.mark.parametrize("drafter", ["llama", "qwen3_next"])
@pytest.mark.parametrize("name", ["gemma3_text", "mamba"])
def test_a_draft_model(name: str, drafter: str) -> None:
    """Its cache goes back with that of the model. One that cannot be trimmed is left out."""
    small, prefixes, stored = model_of(drafter).model, Prefixes(build(name)), LRUPromptCache(max_checkpoints=MOST)

    def with_model(model: Any, prompt: Sequence[int], **options: Any) -> Any:
        return GENERATE.speculative_generate_step(mx.array(prompt), model, small, num_draft_tokens=K, **options)

    answer = prefixes.answer(with_model, PROMPT, make_cache(prefixes.model) + make_cache(small), MOST)
    assert misplaced(answer) == []
    stored.insert_cache("model", answer.text, answer.cache, checkpoints=dict(answer.taken.taken))
    for shared in AFTER_DRAFTS:
        prompt = edited(answer.text, shared)
        cache, rest = stored.fetch_nearest_cache("model", prompt)
        own, n = len(make_cache(prefixes.model)), len(prompt) - len(rest)
        assert n == max(place for place in answer.taken.taken if place <= shared)
        assert (len(cache) > own) == (drafter == "llama")
        for layers in [cache[own:]] if len(cache) > own else []:
            right = make_cache(small)
            small(mx.array([prompt[:n]]), cache=right)
            assert gap(next_turn(small, deepcopy(layers)), next_turn(small, right)) < CLOSE
        got = prefixes.answer(with_model, rest, cache, n=2)
        assert got.tokens == prefixes.cold(prompt).tokens
        assert prefixes.off(got, prompt, n, len(PROMPT), 0) <= prefixes.rounding


# Places, and the ends of the parts in which a prompt of 1600 tokens is read: what has a checkpoint in the end.
TAKEN: list[tuple[list[int], list[int], list[int]]] = [
    ([], [1599], [1599]),
    ([], [100, 500, 600, 1000, 1599], [600, 1599]),
    ([100, 300], [300, 600, 1599], [100, 300, 1599]),
    ([1500, 1599, 1600, 1700], [1000, 1599], [1000, 1500, 1599]),
]


@pytest.mark.parametrize(("places", "parts", "taken"), TAKEN)
def test_where_checkpoints_are(places: list[int], parts: list[int], taken: list[int]) -> None:
    """At each place, where the prompt ends, and 512 tokens behind the last one: not more than are asked for."""
    for most in (0, 1, 2, 8):
        checkpoints = Checkpoints(most, 1600, 0, places)
        for a, b in pairwise([0, *parts]):
            checkpoints.advance(b - a, list)
        assert len(checkpoints.taken) == min(most, len(taken))
    assert sorted(checkpoints.taken) == taken


FAULTS: list[tuple[str, Any, str, str, str]] = [
    # A restored cache shares its arrays with the checkpoint.
    ("qwen3_next", Checkpoint, "restore", "vars(copy.deepcopy(layer))", "vars(layer)"),
    ("gemma3_text", Checkpoint, "restore", "vars(copy.deepcopy(layer))", "vars(layer)"),
    # A checkpoint is the cache that is fed on.
    ("qwen3_next", Checkpoint, "_copy", "c = copy.deepcopy(c)", "pass"),
    ("gemma3_text", Checkpoint, "_copy", "c = copy.deepcopy(c)", "pass"),
    # One token off: where it is said to be, its window, its state, and what is trimmed beside it.
    ("mamba", Checkpoints, "advance", "self.taken[end - n_after]", "self.taken[end - n_after + 1]"),
    (
        "gemma3_text",
        Checkpoint,
        "_copy",
        "trim_prompt_cache([c], num_tokens)",
        "trim_prompt_cache([c], num_tokens - 1) + 1",
    ),
    ("deepseek_v41", Decoder, "accept", "self.n_accepted - len(self.verifier.replay)", "self.n_accepted"),
    ("mamba", ArraysCache, "__setitem__", "value.after(n)", "value.after(max(n - 1, 1))"),
    (
        "gemma3_text",
        Checkpoint,
        "restore",
        "trim_prompt_cache(trimmed, num_tokens)",
        "trim_prompt_cache(trimmed, num_tokens + 1) - 1",
    ),
]


@pytest.mark.planted
@pytest.mark.parametrize(("name", "owner", "function", "right", "wrong"), FAULTS)
def test_a_planted_fault_is_found(
    name: str, owner: Any, function: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault: Any = mutant(getattr(owner, function), right, wrong)
    is_static = isinstance(vars(owner)[function], staticmethod)
    monkeypatch.setattr(owner, function, staticmethod(fault) if is_static else fault)
    prefixes = Prefixes(build(name))
    with pytest.raises((AssertionError, ValueError, IndexError, AttributeError)):
        check(name, prefixes)
