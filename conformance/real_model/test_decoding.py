"""The contracts on SmolLM2 with real text, in bf16 and in 4 bits: scripts/check.sh --model smollm2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import load

from conformance.__main__ import main
from conformance.smollm2 import MODELS, checks, path_of
from conformance.smollm2.tasks import TASKS, rewrite

pytestmark = pytest.mark.real_model

QUESTIONS = [
    rewrite()[0]["content"],
    "Write the same function again, with `text` renamed to `sentence`.",
    "Write the first function again.",
]
# Not all tasks in all ways: a run of one takes seconds.
SAMPLED = [(task, sampling) for task in ("rewrite", "answer") for sampling in ("sampled", "penalized")]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """SmolLM2 and its tokenizer."""
    loaded, tokenizer = load(path_of(request.param))
    return loaded, tokenizer


@pytest.mark.parametrize(("task", "sampling"), [(task, "greedy") for task in TASKS] + SAMPLED)
def test_parity(model: tuple[Any, Any], task: str, sampling: str) -> None:
    assert checks.parity(*model, TASKS[task](), sampling) == []


def test_exits(model: tuple[Any, Any]) -> None:
    assert checks.exits(*model, TASKS["rewrite"](), [1, 9]) == []


def test_a_chat_of_several_turns(model: tuple[Any, Any]) -> None:
    assert checks.conversation(*model, QUESTIONS) == []


def test_rows_of_a_batch(model: tuple[Any, Any], record_property: Callable[[str, object], None]) -> None:
    wrong, other = checks.batch(*model, [TASKS[name]() for name in ("rewrite", "document", "fill_json", "answer")])
    record_property("rows of the plain batch that differ from the row alone", other)
    assert wrong == []


@pytest.mark.parametrize("name", MODELS)
def test_conformance_check(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a user runs to see whether a model is decoded exactly. The prompts that it has take this model an hour."""
    prompts = tmp_path / "prompts"
    prompts.write_text("\n".join(json.dumps(TASKS[task]()[0]["content"]) for task in ("rewrite", "answer")))
    options = ["--prompts", str(prompts), "--max-tokens", "16"]
    assert main(["check", "--model", name, *options]) == 0, capsys.readouterr().out
