"""The calls of the published experiments, with the fixture as the model."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm import batch_generate, stream_generate
from mlx_lm.draft import DraftStats
from mlx_lm.generate import NgramModTable
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from conformance import FIXTURE
from conformance.lab.bench.models import widened
from conformance.oracle.findings import broken
from conformance.subjects.prompts import CODE, fenced, ids

N = 96
load = cache(mlx_lm.load)


@cache
def plain(name: str) -> str:
    model, tokenizer = load(str(FIXTURE))
    return "".join(r.text for r in stream_generate(model, tokenizer, ids(tokenizer, name), max_tokens=N))


def drafted(name: str, **options: Any) -> DraftStats:
    """Decode a prompt with drafts, which have to give the text of plain decoding. Returns the statistics."""
    model, tokenizer = load(str(FIXTURE))
    options = {"sampler": make_sampler(temp=0.0), "disable_adaptive_gate": True} | options
    responses = list(stream_generate(model, tokenizer, ids(tokenizer, name), max_tokens=N, **options))
    if (text := "".join(r.text for r in responses)) != plain(name):
        broken(f"{name} with {options} gives another text than plain decoding: {text!r}")
    stats: DraftStats = responses[-1].draft
    return stats


# A call, and more tokens than these are accepted.
CALLS: dict[str, tuple[str, dict[str, Any], int]] = {
    "NgramSimpleStrategy": ("rename", {"draft_type": "ngram-simple", "num_draft_tokens": 4, "ngram_size": 3}, 60),
    "EditStrategy": ("json", {"prompt_lookup_num_tokens": 8, "disable_adaptive_gate": False}, 0),
}


@pytest.mark.parametrize("strategy", CALLS)
def test_a_call(strategy: str) -> None:
    name, options, least = CALLS[strategy]
    stats = drafted(name, **options)
    assert (stats.strategy, stats.accepted > least) == (strategy, True), stats


def test_a_table_for_several_prompts() -> None:
    options = {"draft_type": "ngram-mod", "num_draft_tokens": 6, "ngram_size": 16, "ngram_mod_table": NgramModTable(16)}
    first, second, _ = (drafted(name, **options).accepted for name in ("rename", "rename", "json"))
    # At the second time, the table holds the whole answer.
    assert 0 < first < second


@pytest.mark.parametrize("draft_type", ["auto", "edit", "suffix", "ngram-simple", "ngram-mod"])
def test_a_text_that_is_not_in_the_prompt(draft_type: str) -> None:
    """Drafts come from a reference from the first token of the answer on."""
    reference = load(str(FIXTURE))[1].encode(fenced(CODE.replace("text", "node")))
    without, listed, in_array = (
        drafted("rename", draft_type=draft_type, draft_reference=given)
        for given in (None, reference, mx.array(reference))
    )
    assert without.accepted < listed.accepted
    assert listed == in_array


def test_the_widened_model_computes_the_same() -> None:
    """The model of the benchmark gives the text of the fixture, at a higher cost."""
    model, tokenizer = load(str(FIXTURE))
    tokens = mx.array([ids(tokenizer, "json")])
    assert mx.array_equal(model(tokens), widened(1024, mx.float16)[0](tokens)).item()


WRONG: list[dict[str, Any]] = [
    {"draft_type": ""},
    {"draft_costs": 5, "draft_type": "auto"},
    {"disable_adaptive_gate": "yes", "draft_type": "auto"},
    {"draft_reference": [10**9], "draft_type": "auto"},
    {"draft_reference": mx.array([[1, 2]]), "draft_type": "auto"},
    {"ngram_size": 3},
]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: next(iter(given)))
def test_a_wrong_argument_is_named(given: dict[str, Any]) -> None:
    """First in the message, or behind the draft type that excludes it."""
    with pytest.raises((TypeError, ValueError), match=f"^(draft_type 'none' excludes )?{next(iter(given))}( |$)"):
        next(stream_generate(*load(str(FIXTURE)), "Hello", **given))


def test_a_draft_model_needs_no_cache_of_its_own() -> None:
    """The cache of the model is enough, and the next turn goes on with the caches of both."""
    model, tokenizer = load(str(FIXTURE))
    layers = make_prompt_cache(model)
    n_own = len(layers)
    stats = drafted("rename", draft_model=model, prompt_cache=layers, disable_adaptive_gate=False)
    assert stats.accepted > 0.9 * stats.drafted
    assert [layer.offset for layer in layers] == [len(ids(tokenizer, "rename")) + N] * 2 * n_own


def test_the_help_lists_every_argument() -> None:
    for function in (stream_generate, batch_generate):
        described = inspect.getdoc(function) or ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and not re.search(rf"\b{name}\b", described):
                broken(f"{function.__name__} does not describe {name}")
