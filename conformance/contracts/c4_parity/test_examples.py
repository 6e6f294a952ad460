"""The calls of the published experiments, with the fixture as the model."""

from __future__ import annotations

import inspect
import re
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import batch_generate, stream_generate
from mlx_lm.draft import DraftStats
from mlx_lm.generate import NgramModTable
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from conformance.lab.bench.models import widened
from conformance.subjects.prompts import CODE, fenced, ids

N = 96


# The text of plain decoding for each prompt.
PLAIN: dict[tuple[int, ...], str] = {}


def plain_text(model: Any, tokenizer: Any, prompt: list[int]) -> str:
    if (key := tuple(prompt)) not in PLAIN:
        PLAIN[key] = "".join(r.text for r in stream_generate(model, tokenizer, prompt, max_tokens=N))
    return PLAIN[key]


def drafted(model: Any, tokenizer: Any, prompt: list[int], **options: Any) -> DraftStats:
    """Decode with drafts, and check that the text is that of plain decoding. Returns the statistics."""
    options = {"sampler": make_sampler(temp=0.0), "disable_adaptive_gate": True} | options
    responses = list(stream_generate(model, tokenizer, prompt, max_tokens=N, **options))
    assert "".join(r.text for r in responses) == plain_text(model, tokenizer, prompt)
    stats: DraftStats = responses[-1].draft
    return stats


def test_ngram_simple(fixture: tuple[Any, Any]) -> None:
    prompt = ids(fixture[1], "rename")
    stats = drafted(*fixture, prompt, draft_type="ngram-simple", num_draft_tokens=4, ngram_size=3)
    assert stats.accepted > 60
    assert stats.strategy == "NgramSimpleStrategy"


def test_a_table_for_several_prompts(fixture: tuple[Any, Any]) -> None:
    model, tokenizer = fixture
    table, accepted = NgramModTable(n=16), []
    options = {"draft_type": "ngram-mod", "num_draft_tokens": 6, "ngram_size": 16, "ngram_mod_table": table}
    for name in ("rename", "rename", "json"):
        accepted.append(drafted(model, tokenizer, ids(tokenizer, name), **options).accepted)
    # At the second time, the table holds the whole answer.
    assert 0 < accepted[0] < accepted[1]


def test_a_length(fixture: tuple[Any, Any]) -> None:
    stats = drafted(*fixture, ids(fixture[1], "json"), prompt_lookup_num_tokens=8, disable_adaptive_gate=False)
    assert stats.accepted > 0


@pytest.mark.parametrize("draft_type", ["auto", "edit", "suffix", "ngram-simple", "ngram-mod"])
def test_a_text_that_is_not_in_the_prompt(fixture: tuple[Any, Any], draft_type: str) -> None:
    """Drafts come from a reference from the first token of the answer on."""
    prompt = ids(fixture[1], "rename")
    reference = fixture[1].encode(fenced(CODE.replace("text", "node")))
    without, listed, in_array = (
        drafted(*fixture, prompt, draft_type=draft_type, draft_reference=given)
        for given in (None, reference, mx.array(reference))
    )
    assert without.accepted < listed.accepted
    assert listed == in_array


def test_the_widened_model_computes_the_same(fixture: tuple[Any, Any]) -> None:
    """The model of the benchmark gives the text of the fixture, at a higher cost."""
    model, tokenizer = fixture
    tokens = mx.array([ids(tokenizer, "json")])
    wide, _ = widened(1024, mx.float16)
    assert mx.array_equal(model(tokens), wide(tokens)).item()
    wide.model.layers[0].mlp.down_proj.weight += 0.01
    assert not mx.array_equal(model(tokens), wide(tokens)).item()


@pytest.mark.parametrize(
    "given",
    [
        {"draft_type": ""},
        {"draft_costs": 5, "draft_type": "auto"},
        {"disable_adaptive_gate": "yes", "draft_type": "auto"},
        {"draft_reference": [10**9], "draft_type": "auto"},
        {"draft_reference": mx.array([[1, 2]]), "draft_type": "auto"},
        {"ngram_size": 3},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_wrong_argument_is_named(fixture: tuple[Any, Any], given: dict[str, Any]) -> None:
    """First in the message, or behind the draft type that excludes it."""
    with pytest.raises((TypeError, ValueError), match=f"^(draft_type 'none' excludes )?{next(iter(given))}( |$)"):
        next(stream_generate(*fixture, "Hello", **given))


def test_a_draft_model_needs_no_cache_of_its_own(fixture: tuple[Any, Any]) -> None:
    """The cache of the model is enough, and the next turn goes on with the caches of both."""
    model, tokenizer = fixture
    cache, prompt = make_prompt_cache(model), ids(tokenizer, "rename")
    n_caches = len(cache)
    options = {"draft_model": model, "prompt_cache": cache, "disable_adaptive_gate": False}
    stats = drafted(model, tokenizer, prompt, **options)
    assert stats.accepted > 0.9 * stats.drafted
    assert len(cache) == 2 * n_caches
    assert {layer.offset for layer in cache} == {len(prompt) + N}


def test_the_help_lists_every_argument() -> None:
    for function in (stream_generate, batch_generate):
        described = inspect.getdoc(function) or ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert re.search(rf"\b{name}\b", described), f"{function.__name__} does not describe {name}"
