"""What is recorded of SmolLM2 is what it says, and what its head drafts, computed by mlx."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from conformance.lab.recorded.answers import ANSWERS, answers, is_judge, read
from conformance.lab.trained import COST, DRAFTS, HeadDrafts
from conformance.lab.trained.head import load_head
from conformance.smollm2 import path_of

pytestmark = pytest.mark.real_model
# How far a log probability may be off, in thousandths: numpy adds in another order.
NEAR = 10
# Of the first drafts not many: two that are as likely may come in either order.
PLACES, SAME = range(2, 40, 6), 0.8


@pytest.fixture
def model() -> Any:
    return load(path_of("smollm2"))[0]


def test_the_recorded_answers_are_the_models(model: Any) -> None:
    """Their likeliest tokens and log probabilities."""
    model.set_dtype(mx.float32)
    for one in answers()[3:60:28]:
        start = len(one.prompt) - 1
        logits = model(mx.array([one.prompt + one.answer[:-1]]))[0, start:]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        found = mx.take_along_axis(logprobs, mx.array(one.likeliest), axis=-1)
        assert mx.max(mx.abs(1000 * found - mx.array(one.logprobs))).item() < NEAR
        # Of two that are as likely either may come first.
        assert mx.max(logprobs.max(axis=-1) - found[:, 0]).item() < NEAR / 1000


def test_what_is_recorded_of_the_head_is_what_it_drafts(model: Any) -> None:
    from mlx_lm.draft import HeadedModel

    head = load_head("smollm2", model)
    # What the simulation charges for a token of it.
    assert head.cost == pytest.approx(COST, abs=0.001)
    headed = HeadedModel(model, head)
    texts = {(one["kind"], one["source"]): one["prompt"] + one["answer"] for one in read(ANSWERS)[1]}
    same = list[bool]()
    for one in [HeadDrafts(**one) for one in read(DRAFTS / "answers.jsonl.gz")[1]][:40:20]:
        assert is_judge(one.source)
        text, cache = texts[one.kind, one.source], headed.make_cache()
        start = len(text) - len(one.tokens)
        headed(mx.array([text[: start - 1]]), cache)
        for place, token in enumerate(text[start - 1 : start - 1 + PLACES.stop]):
            if place in PLACES:
                made = headed.draft(mx.array([[token]]), cache, 2)[0]
                same += [a == b for a, b in zip(made, one.tokens[place], strict=False)]
            headed(mx.array([[token]]), cache)
    assert sum(same) >= SAME * len(same), f"{sum(same)} of {len(same)} drafted tokens are those that are recorded"
