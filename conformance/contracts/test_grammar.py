"""Drafts follow a grammar, and the text is that of the same grammar without drafts: C4 and C5.

In test_decoding.py a scripted processor that guides drafts meets each model and drafter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.grammar import GrammarProcessor, compile_grammar
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL

NAME = {"type": "string", "maxLength": 12}
ITEM = {"type": "object", "properties": {"name": NAME, "price": {"type": "number"}}, "required": ["name", "price"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    # Each has escapes or bytes that the tokenizer splits.
    "escapes": {"enum": ['say "no"', "C:\\temp\\new", "one\n\ttwo", "💡🛋️", "\x01"]},
    # These spell tokens of the fixture.
    "marks": {"const": "<|end|> a<|tool|>b"},
    "a record": ITEM | {"additionalProperties": False},
    "a list": {"type": "array", "items": ITEM | {"additionalProperties": False}, "minItems": 2, "maxItems": 4},
    "a tree": {"$defs": {"node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}, "n": NAME}}}}
    | {"$ref": "#/$defs/node"},
}
# What others wrote. The file names its sources.
PACKAGED: dict[str, Any] = json.loads((Path(__file__).parent / "schemas.json").read_text("utf-8"))
PACKAGES = {
    "JSON Schema test suite": PACKAGED["kept"],
    "bfcl-eval": {one["id"]: one["function"]["parameters"] for one in PACKAGED["calls"]},
}
DRAFTS = ["edit", "suffix", "ngram-simple", "ngram-mod"]
TEXT = (
    'Write this as JSON: name is "lamp", price is 12.5; name is "chair", price is 30.\n[{"name": "lamp", "price": 12.5}'
)


Model = tuple[Any, Any]
needs_llguidance = pytest.mark.usefixtures("llguidance")


@pytest.fixture
def llguidance() -> Any:
    return pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')


def kept(tokenizer: Any, schema: dict[str, Any]) -> GrammarProcessor:
    return GrammarProcessor(tokenizer, compile_grammar("json_schema", schema))


def answer(fixture: Model, processors: list[Any], draft: Any, sampler: Any = None, n: int = 80) -> list[Any]:
    model, tokenizer = fixture
    mx.random.seed(3)
    options = {"draft": draft, "disable_adaptive_gate": draft is not None}
    prompt = tokenizer.encode(TEXT)
    steps = stream_generate(
        model, tokenizer, prompt, max_tokens=n, logits_processors=processors, sampler=sampler, **options
    )
    return list(steps)


@needs_llguidance
@pytest.mark.contract("C4")
@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_of_a_schema(fixture: Model, name: str) -> None:
    """The text of each drafter is that without drafts."""
    tokenizer, schema = fixture[1], SCHEMAS[name]
    for sampler, penalty in ((None, 0.0), (make_sampler(1.0, top_p=0.95), 1.2)):
        others = make_logits_processors(repetition_penalty=penalty)
        drafts = DRAFTS if FULL else DRAFTS[:2] if sampler is None else DRAFTS[2:]
        plain, *drafted = (
            answer(fixture, [kept(tokenizer, schema), *others], draft, sampler) for draft in (None, *drafts)
        )
        for draft, steps in zip(drafts, drafted, strict=True):
            if [step.token for step in steps] != [step.token for step in plain]:
                broken(f"{name}: {draft} gives {text(steps)!r} instead of {text(plain)!r}")


def text(steps: list[Any]) -> str:
    return "".join(step.text for step in steps)


@needs_llguidance
@pytest.mark.contract("C5")
@pytest.mark.parametrize("package", PACKAGES)
def test_schemas_of_packages(fixture: Model, package: str) -> None:
    """Each drafted answer has the form of its schema, or ends by length."""
    from jsonschema import Draft202012Validator

    n_ended = 0
    for name, schema in PACKAGES[package].items():
        steps = answer(fixture, [kept(fixture[1], schema)], "edit", make_sampler(1.0, top_p=0.95))
        if steps[-1].finish_reason == "stop":
            if errors := [*Draft202012Validator(schema).iter_errors(json.loads(text(steps)))]:
                broken(f"{name}: {text(steps)!r} is wrong: {errors[0].message}")
            n_ended += 1
    assert n_ended >= len(PACKAGES[package]) / 3, f"only {n_ended} answers have ended, so few were asked for the form"


@needs_llguidance
@pytest.mark.contract("C6")
@pytest.mark.parametrize("keyword", PACKAGED["refused"])
def test_a_keyword_that_is_refused(keyword: str) -> None:
    with pytest.raises(ValueError, match=re.escape(keyword)):
        compile_grammar("json_schema", PACKAGED["refused"][keyword])
