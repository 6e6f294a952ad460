"""Prompt lookup gives the tokens and logits of plain decoding on the fixture."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, prompt_lookup_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from conformance.oracle.whole import WHOLE
from conformance.subjects.prompts import PROMPTS, ids

MAX_TOKENS = 40


def plain_steps(
    model: Any, prompt: list[int], max_tokens: int = MAX_TOKENS, **kwargs: Any
) -> list[tuple[int, mx.array]]:
    mx.random.seed(1)
    return list(generate_step(mx.array(prompt), model, max_tokens=max_tokens, **kwargs))


def drafted(model: Any, prompt: list[int], n: int, **kwargs: Any) -> list[tuple[int, mx.array, bool]]:
    mx.random.seed(1)
    kwargs = {"max_tokens": MAX_TOKENS, "num_draft_tokens": n, **WHOLE} | kwargs
    return list(prompt_lookup_generate_step(mx.array(prompt), model, **kwargs))


@pytest.fixture(scope="module")
def plain_runs(fixture: tuple[Any, Any]) -> dict[str, list[tuple[int, mx.array]]]:
    return {}


@pytest.mark.parametrize(
    ("draft_type", "n"),
    [("edit", 1), ("edit", 16), ("suffix", 1), ("suffix", 16), ("ngram-simple", 8), ("ngram-mod", 6)],
)
@pytest.mark.parametrize("name", PROMPTS)
def test_greedy(fixture: tuple[Any, Any], plain_runs: dict[str, Any], name: str, draft_type: str, n: int) -> None:
    """Equal bit for bit on a CPU, where a block computes the same as single steps. Elsewhere the same tokens."""
    model, tokenizer = fixture
    prompt = ids(tokenizer, name)
    if name not in plain_runs:
        plain_runs[name] = plain_steps(model, prompt)
    right = plain_runs[name]
    got = drafted(model, prompt, n, draft_type=draft_type)
    assert [step[0] for step in got] == [step[0] for step in right]
    if mx.default_device() == mx.Device(mx.cpu):
        assert all(mx.array_equal(a[1], b[1]).item() for a, b in zip(got, right, strict=True))


@pytest.mark.parametrize("name", ["tool", "nothing_to_copy"])
@pytest.mark.parametrize(
    "sampler", [{"temp": 0.7}, {"temp": 1.0, "top_p": 0.8}, {"temp": 1.0, "xtc_probability": 0.5}], ids=str
)
def test_seeded_sampling(fixture: tuple[Any, Any], name: str, sampler: dict[str, float]) -> None:
    model, tokenizer = fixture
    prompt = ids(tokenizer, name)
    right = plain_steps(model, prompt, sampler=make_sampler(**sampler))
    got = drafted(model, prompt, 4, sampler=make_sampler(**sampler))
    assert [step[0] for step in got] == [step[0] for step in right]


def test_most_of_an_edit_is_copied(fixture: tuple[Any, Any]) -> None:
    model, tokenizer = fixture
    copied = drafted(model, ids(tokenizer, "rename"), 8)
    assert sum(step[2] for step in copied) > len(copied) / 2


def never_twice(tokens: mx.array, logits: mx.array) -> mx.array:
    logits[:, tokens] = -mx.inf
    return logits


def test_nothing_is_drafted_where_no_token_repeats(fixture: tuple[Any, Any]) -> None:
    model, _ = fixture
    prompt, stats = list(range(5, 45)), DraftStats()
    right = plain_steps(model, prompt, logits_processors=[never_twice])
    got = drafted(model, prompt, 8, logits_processors=[never_twice], stats=stats)
    assert [step[0] for step in got] == [step[0] for step in right]
    assert (stats.drafted, stats.forwards) == (0, MAX_TOKENS + 1)


@pytest.mark.parametrize(("name", "end"), [("tool", "stop"), ("quote", "stop"), ("nothing_to_copy", "length")])
def test_text_and_end(fixture: tuple[Any, Any], name: str, end: str) -> None:
    """stream_generate stops at the same token, and its last response has the statistics of drafting."""
    model, tokenizer = fixture
    prompt = ids(tokenizer, name)
    right = list(stream_generate(model, tokenizer, prompt, max_tokens=60))
    assert right[-1].draft is None
    got = list(stream_generate(model, tokenizer, prompt, max_tokens=60, prompt_lookup_num_tokens=3))
    assert [r.text for r in got] == [r.text for r in right]
    assert got[-1].finish_reason == right[-1].finish_reason == end
    assert got[-1].draft.accepted <= got[-1].draft.drafted


def eos_inside_a_draft(model: Any, prompt: list[int], n: int) -> int:
    """A token that ends the text in the middle of an accepted draft."""
    steps = drafted(model, prompt, n)
    tokens = [step[0] for step in steps]
    for i, (token, _, from_draft) in enumerate(steps[:-1]):
        if from_draft and steps[i + 1][2] and tokens.index(token) == i:
            return token
    raise AssertionError("no draft was accepted")


@pytest.mark.contract("C3")
def test_eos_inside_an_accepted_draft(fixture: tuple[Any, Any]) -> None:
    model, tokenizer = fixture
    prompt = ids(tokenizer, "rename")
    eos = eos_inside_a_draft(model, prompt, 8)
    before = set(tokenizer.eos_token_ids)
    tokenizer.eos_token_ids = before | {eos}
    try:
        caches = [make_prompt_cache(model) for _ in range(2)]
        right = list(stream_generate(model, tokenizer, prompt, max_tokens=MAX_TOKENS, prompt_cache=caches[0]))
        got = list(
            stream_generate(
                model, tokenizer, prompt, max_tokens=MAX_TOKENS, prompt_cache=caches[1], prompt_lookup_num_tokens=8
            )
        )
    finally:
        tokenizer.eos_token_ids = before
    assert got[-1].finish_reason == "stop"
    assert got[-1].token == right[-1].token == eos
    assert [r.token for r in got] == [r.token for r in right]
    assert same_next_turn(model, *caches)


@pytest.mark.contract("C3")
@pytest.mark.parametrize("stop_after", [1, 2, 5, 9, 10, 11, 40])
def test_cache_after_the_consumer_stops(fixture: tuple[Any, Any], stop_after: int) -> None:
    """The cache holds the prompt and exactly the yielded tokens, so a second turn equals that of plain decoding."""
    model, tokenizer = fixture
    prompt = ids(tokenizer, "rename")
    caches = [make_prompt_cache(model) for _ in range(2)]
    plain_steps(model, prompt, max_tokens=stop_after, prompt_cache=caches[0])
    steps = prompt_lookup_generate_step(mx.array(prompt), model, num_draft_tokens=8, prompt_cache=caches[1])
    for _ in range(stop_after):
        next(steps)
    steps.close()
    assert caches[1][0].offset == len(prompt) + stop_after
    assert same_next_turn(model, *caches)


def same_next_turn(model: Any, expected: list[Any], cache: list[Any]) -> bool:
    turn = [3, 50, 51, 52]
    right = plain_steps(model, turn, 20, prompt_cache=expected)
    got = plain_steps(model, turn, 20, prompt_cache=cache)
    return all(a[0] == b[0] and mx.array_equal(a[1], b[1]).item() for a, b in zip(got, right, strict=True))
