"""Prompt lookup on real text: the fixture's tokens and logits are those of plain decoding, with drafts that pay."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import batch_generate, stream_generate
from mlx_lm.generate import generate_step, prompt_lookup_generate_step

from conformance.oracle.findings import WHOLE, broken
from conformance.oracle.profiles import FULL
from conformance.oracle.recorder import gap
from conformance.subjects.prompts import PROMPTS, ids

N = 28
Model = tuple[Any, Any]
TYPES = [("edit", 1), ("edit", 16), ("suffix", 1), ("suffix", 16), ("ngram-simple", 8), ("ngram-mod", 6)]


def plain(model: Any, prompt: list[int], **options: Any) -> list[Any]:
    mx.random.seed(1)
    return list(generate_step(mx.array(prompt), model, max_tokens=N, **options))


def compare(model: Any, prompt: list[int], right: list[Any], **options: Any) -> list[Any]:
    """Decode with prompt lookup and compare. Returns the steps."""
    mx.random.seed(1)
    got = list(prompt_lookup_generate_step(mx.array(prompt), model, **{"max_tokens": N, **WHOLE, **options}))
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        assert a[0] == b[0], f"token {i} is {a[0]} instead of {b[0]}"
    # A block computes the same as single steps on a CPU.
    off = gap([step[1] for step in got], [step[1] for step in right])
    assert off == 0 or mx.default_device() != mx.Device(mx.cpu), f"the log probabilities are off by {off:.2g}"
    return got


@pytest.fixture(scope="module")
def right(fixture: Model) -> Any:
    return cache(lambda name: plain(fixture[0], ids(fixture[1], name)))


@pytest.mark.contract("C4")
@pytest.mark.parametrize(
    ("name", "draft_type", "n"),
    [(name, *kind) for i, name in enumerate(PROMPTS) for j, kind in enumerate(TYPES) if FULL or (i + j) % 2 == 1],
)
def test_greedy(fixture: Model, right: Any, name: str, draft_type: str, n: int) -> None:
    got = compare(fixture[0], ids(fixture[1], name), right(name), draft_type=draft_type, num_draft_tokens=n)
    copied = sum(step[2] for step in got)
    assert copied > N / 2 or (name, n) != ("rename", 16), f"{copied} of {N} tokens of an edit were drafted"


@pytest.mark.contract("C4")
@pytest.mark.parametrize("draft_type", ["auto", "edit", "suffix", "ngram-simple", "ngram-mod"])
def test_a_text_that_is_not_in_the_prompt(fixture: Model, right: Any, draft_type: str) -> None:
    """Drafts come from a reference from the first token of the answer on."""
    model, prompt, plain = fixture[0], ids(fixture[1], "nothing_to_copy"), right("nothing_to_copy")
    reference = [token for token, _ in plain]
    without, listed, in_array = (
        [step[2] for step in compare(model, prompt, plain, draft_type=draft_type, draft_reference=given)]
        for given in (None, reference, mx.array(reference))
    )
    assert sum(without) < sum(listed)
    assert listed == in_array


@pytest.mark.contract("C4")
def test_a_table_for_several_prompts(fixture: Model, right: Any) -> None:
    """At the second time, the table holds the whole answer."""
    from mlx_lm.draft import NgramModTable

    options = {"draft_type": "ngram-mod", "num_draft_tokens": 6, "ngram_size": 16, "ngram_mod_table": NgramModTable(16)}
    name = "nothing_to_copy"
    first, second = (compare(fixture[0], ids(fixture[1], name), right(name), **options) for _ in range(2))
    assert sum(step[2] for step in first) < sum(step[2] for step in second)


WRONG: list[dict[str, Any]] = [
    {"draft_type": ""},
    {"draft_costs": 5, "draft_type": "auto"},
    {"disable_adaptive_gate": "yes", "draft_type": "auto"},
    {"draft_reference": [10**9], "draft_type": "auto"},
    {"draft_reference": mx.array([[1, 2]]), "draft_type": "auto"},
    {"ngram_size": 3},
]


@pytest.mark.contract("C6")
@pytest.mark.parametrize("given", WRONG, ids=lambda given: next(iter(given)))
def test_a_wrong_argument_is_named(fixture: Model, given: dict[str, Any]) -> None:
    """First in the message, or behind the draft type that excludes it."""
    with pytest.raises((TypeError, ValueError), match=f"^(draft_type 'none' excludes )?{next(iter(given))}( |$)"):
        next(stream_generate(*fixture, "Hello", **given))


@pytest.mark.contract("C6")
def test_the_help_lists_every_argument() -> None:
    for function in (stream_generate, batch_generate):
        described = inspect.getdoc(function) or ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and not re.search(rf"\b{name}\b", described):
                broken(f"{function.__name__} does not describe {name}")
