"""Drafts follow a grammar, and the text is that of the same grammar without drafts: C4 and C5.

In test_decoding.py a scripted processor that guides drafts meets each model and drafter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.grammar import GrammarProcessor, compile_grammar
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools

from conformance.drafters import VOCAB, Scripted
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


def says(token: int, place: int) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor for one token at one place of a response."""
    places = count()
    return lambda _, logits: logits + mx.where(mx.arange(logits.shape[-1]) == token, 1e3, 0) * (next(places) == place)


@needs_llguidance
@pytest.mark.contract("C4")
def test_a_thought_ends_in_a_draft(fixture: Model) -> None:
    """The grammar of a required call begins behind it, in the same block."""
    inner, place = fixture[1]._tokenizer, 7
    marks = {"tool_call_start": json_tools.tool_call_start, "tool_call_end": json_tools.tool_call_end}
    thinking: Any = TokenizerWrapper(inner, tool_parser=json_tools.parse_tool_call, **marks)
    opens, closes = inner.encode("<|system|><|tool|>", add_special_tokens=False)
    thinking._think_start, thinking._think_start_tokens, thinking._think_end_tokens = "<|system|>", [opens], [closes]

    def processors() -> list[Any]:
        grammar = compile_grammar("json_schema", SCHEMAS["a record"])
        return [says(closes, place), GrammarProcessor(thinking, grammar, [opens], "required")]

    plain = answer(fixture, processors(), None)
    tokens = [step.token for step in plain]
    drafted = answer(fixture, processors(), Scripted(inner.encode(TEXT) + tokens, VOCAB))
    if [step.token for step in drafted] != tokens:
        broken(f"drafts give {text(drafted)!r} instead of {text(plain)!r}")
    # No token that the model adds to a block is between them.
    assert all(step.from_draft for step in drafted[place : place + 2]), "no block had the end of the thought in it"
    if not (behind := inner.decode(tokens[place + 1 :])).startswith("<tool_call>"):
        broken(f"behind the thought comes {behind!r}")
