"""The head that was trained for SmolLM2: the text is the same with it, and it drafts what is recorded of it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.draft import EditStrategy, HeadDraftStrategy, HeadedModel

from conformance.lab.recorded.answers import ANSWERS, is_judge, read
from conformance.lab.trained import COST, DRAFTS, HeadDrafts
from conformance.lab.trained.head import load_head
from conformance.real_model.decoding import SAMPLING, run, same
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TASKS, encode

pytestmark = pytest.mark.real_model

# Of the first of them not many: two that are as likely may come in either order.
PLACES, SAME = range(2, 40, 6), 0.8


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """SmolLM2 and its tokenizer."""
    loaded, tokenizer = load(path_of(request.param))
    return loaded, tokenizer


@pytest.mark.parametrize(("task", "sampling"), [("rewrite", "greedy"), ("answer", "greedy"), ("answer", "sampled")])
def test_parity(model: tuple[Any, Any], task: str, sampling: str) -> None:
    """Also where a head does not pay, as with weights of 4 bits on a CPU."""
    loaded, tokenizer = model
    prompt = encode(tokenizer, TASKS[task]())
    plain = run(loaded, tokenizer, prompt, **SAMPLING[sampling]())
    headed = HeadedModel(loaded, load_head("smollm2", loaded))
    options = {"draft_strategy": HeadDraftStrategy(EditStrategy()), "disable_adaptive_gate": True}
    drafted = run(headed, tokenizer, prompt, **options, **SAMPLING[sampling]())
    same(sampling, plain, drafted)
    assert drafted.drafted > 0


def test_what_is_recorded_is_what_it_drafts() -> None:
    model, _ = load(path_of("smollm2"))
    head = load_head("smollm2", model)
    # What the simulation charges for a token of it.
    assert head.cost == pytest.approx(COST, abs=0.001)
    headed = HeadedModel(model, head)
    texts = {(one["kind"], one["source"]): one["prompt"] + one["answer"] for one in read(ANSWERS)[1]}
    same: list[bool] = []
    for one in [HeadDrafts(**one) for one in read(DRAFTS / "answers.jsonl.gz")[1]][:40:20]:
        assert is_judge(one.source)
        text = texts[one.kind, one.source]
        start = len(text) - len(one.tokens)
        cache = headed.make_cache()
        headed(mx.array([text[: start - 1]]), cache)
        for place in range(PLACES.stop):
            if place in PLACES:
                drafted = headed.draft(mx.array([[text[start - 1 + place]]]), cache, 2)[0]
                same += [a == b for a, b in zip(drafted, one.tokens[place], strict=False)]
            headed(mx.array([[text[start - 1 + place]]]), cache)
    assert sum(same) >= SAME * len(same)
