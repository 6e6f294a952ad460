"""The checks of a real model find what is planted. Here they ask the fixture, which is faster."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from mlx_lm.draft import verify

from conformance.server.traffic import EDIT
from conformance.smollm2 import checks
from conformance.smollm2.tasks import encode
from conformance.subjects.prompts import PROMPTS

GENERATE: Any = import_module("mlx_lm.generate")

pytestmark = pytest.mark.usefixtures("uncompiled")

RENAME, DELETE = EDIT, PROMPTS["delete"]
QUESTIONS = [messages[0]["content"] for messages in (RENAME, DELETE)]
Check = Callable[[Any, Any], list[str]]
CHECKS: dict[str, Check] = {
    "greedy": lambda model, tokenizer: checks.parity(model, tokenizer, RENAME, "greedy"),
    "sampled": lambda model, tokenizer: checks.parity(model, tokenizer, RENAME, "sampled"),
    "penalized": lambda model, tokenizer: checks.parity(model, tokenizer, RENAME, "penalized"),
    "exits": lambda model, tokenizer: checks.exits(model, tokenizer, RENAME, [1, 9]),
    "conversation": lambda model, tokenizer: checks.conversation(model, tokenizer, QUESTIONS),
    "batch": lambda model, tokenizer: checks.batch(model, tokenizer, [RENAME, DELETE])[0],
}


@pytest.mark.parametrize("check", CHECKS)
def test_drafting_is_exact(check: str, fixture: tuple[Any, Any]) -> None:
    assert CHECKS[check](*fixture) == []


@pytest.mark.planted
@pytest.mark.parametrize("check", CHECKS)
def test_a_planted_fault_is_found(check: str, fixture: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected token stays in the cache."""
    alone, together = verify.drop_tokens, GENERATE.drop_tokens
    monkeypatch.setattr(verify, "drop_tokens", lambda cache, n: alone(cache, max(n - 1, 0)))
    monkeypatch.setattr(GENERATE, "drop_tokens", lambda cache, ns: together(cache, [max(n - 1, 0) for n in ns]))
    assert CHECKS[check](*fixture) != []


def test_a_drafted_run_drafts(fixture: tuple[Any, Any]) -> None:
    model, tokenizer = fixture
    assert checks.run(model, tokenizer, encode(tokenizer, RENAME), **checks.DRAFT).drafted > 0
