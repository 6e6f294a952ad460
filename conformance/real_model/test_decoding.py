"""The contracts on SmolLM2 with real text, in bf16 and in 4 bits: scripts/check.sh --model smollm2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
from mlx_lm import load

from conformance.__main__ import main
from conformance.smollm2 import MODELS, checks, path_of
from conformance.smollm2.tasks import SHORT_TASKS, TASKS, repeat, rewrite
from conformance.testing.texts.workloads import Message

pytestmark = pytest.mark.real_model


@dataclass(frozen=True)
class Work:
    """What a model is asked, and how many tokens long its answers are."""

    tasks: dict[str, Callable[[], list[Message]]]
    sampled: tuple[str, ...]
    rows: tuple[str, ...]
    questions: tuple[str, ...]
    n_tokens: int


# Not all tasks in all ways: a run of one takes seconds, in 4 bits minutes.
WORK = {
    "smollm2": Work(
        TASKS,
        ("rewrite", "answer"),
        ("rewrite", "document", "fill_json", "answer"),
        (
            rewrite()[0]["content"],
            "Write the same function again, with `text` renamed to `sentence`.",
            "Write the first function again.",
        ),
        32,
    ),
    "smollm2-4bit": Work(
        SHORT_TASKS, ("repeat",), ("repeat", "answer"), (repeat()[0]["content"], "Write it again."), 12
    ),
}
GREEDY = [(name, task, "greedy") for name, work in WORK.items() for task in work.tasks]
SAMPLED = [
    (name, task, way) for name, work in WORK.items() for task in work.sampled for way in ("sampled", "penalized")
]


@lru_cache(maxsize=1)
def loaded(name: str) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    model, tokenizer = load(path_of(name))
    return model, tokenizer


@pytest.mark.parametrize(("name", "task", "sampling"), GREEDY + SAMPLED)
def test_parity(name: str, task: str, sampling: str) -> None:
    work = WORK[name]
    assert checks.parity(*loaded(name), work.tasks[task](), sampling, work.n_tokens) == []


@pytest.mark.parametrize("name", MODELS)
def test_exits(name: str) -> None:
    work = WORK[name]
    assert checks.exits(*loaded(name), work.tasks[work.sampled[0]](), [1, 9], work.n_tokens) == []


@pytest.mark.parametrize("name", MODELS)
def test_a_chat_of_several_turns(name: str) -> None:
    assert checks.conversation(*loaded(name), WORK[name].questions, WORK[name].n_tokens) == []


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_a_batch(name: str, record_property: Callable[[str, object], None]) -> None:
    work = WORK[name]
    wrong, other = checks.batch(*loaded(name), [work.tasks[task]() for task in work.rows], work.n_tokens)
    record_property("rows of the plain batch that differ from the row alone", other)
    assert wrong == []


@pytest.mark.parametrize("name", MODELS)
def test_conformance_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a user runs to see whether a model is decoded exactly."""
    n_tokens = WORK[name].n_tokens // 2
    assert main(["check", "--model", name, "--max-tokens", str(n_tokens)]) == 0, capsys.readouterr().out
