"""C5: SmolLM2 calls functions in the form of their schema, with drafts as without them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from mlx_lm import load, stream_generate

from conformance import ROOT
from conformance.oracle.findings import WHOLE, broken, not_shown
from conformance.smollm2 import path_of
from conformance.smollm2.tasks import encode
from conformance.subjects.prompts import chat

pytestmark = pytest.mark.real_model
CALLS: list[dict[str, Any]] = json.loads((ROOT / "conformance/contracts/schemas.json").read_text("utf-8"))["calls"][:10]


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    model, tokenizer = load(path_of("smollm2"))
    return model, tokenizer


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call["id"]))
def test_a_call(smollm2: tuple[Any, Any], call: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')
    from jsonschema import validate
    from mlx_lm.grammar import GrammarProcessor, compile_grammar

    model, tokenizer = smollm2
    name, arguments = call["function"]["name"], call["function"]["parameters"]
    schema: dict[str, Any] = {"type": "object", "properties": {"name": {"const": name}, "arguments": arguments}}
    schema |= {"required": ["name", "arguments"], "additionalProperties": False}
    keep = partial(GrammarProcessor, tokenizer, compile_grammar("json_schema", schema))
    prompt = encode(tokenizer, chat(f"Call the function {name} as JSON.\n\n{call['question']}"))
    plain, drafted = (
        [*stream_generate(model, tokenizer, prompt, max_tokens=120, logits_processors=[keep()], **options)]
        for options in ({}, {"draft": "edit", **WHOLE})
    )
    said, right = ("".join(step.text for step in steps) for steps in (drafted, plain))
    validate(json.loads(said), schema)
    if said != right:
        broken(f"{name}: {said!r} instead of {right!r}")
    if not drafted[-1].draft.accepted:
        not_shown(f"{name}: no draft was taken")
