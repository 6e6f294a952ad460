"""The contracts on models with text: SmolLM2 (scripts/check.sh --model smollm2), and the fixture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import batch_generate
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.__main__ import main
from conformance.oracle.findings import broken
from conformance.oracle.recorder import offsets_of
from conformance.real_model.decoding import DRAFT, SAMPLING, TOKENS, run, same
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TASKS, encode, rewrite
from conformance.subjects.prompts import PROMPTS, Message

real, quick = pytest.mark.real_model, pytest.mark.selftest
# Not all tasks in all ways: a run of one takes seconds.
REAL = [(task, "greedy") for task in TASKS] + [(task, way) for task in ("rewrite", "answer") for way in SAMPLING]


@dataclass
class Subject:
    model: Any
    tokenizer: Any
    tasks: dict[str, list[Message]]
    questions: list[str]


@pytest.fixture(
    scope="module", params=[*(pytest.param(name, marks=real) for name in MODELS), pytest.param("fixture", marks=quick)]
)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    model, tokenizer = load(str(FIXTURE) if request.param == "fixture" else path_of(request.param))
    tasks = {name: task() for name, task in TASKS.items()}
    others = ["Write the same function again, with `text` renamed to `sentence`.", "Write the first function again."]
    questions = [rewrite()[0]["content"], *others]
    if request.param == "fixture":
        tasks = {"rewrite": PROMPTS["delete"], "answer": PROMPTS["nothing_to_copy"]}
        questions = [messages[0]["content"] for messages in tasks.values()]
        # The first use of each compiled function starts a C++ compiler.
        mx.disable_compile()
    yield Subject(model, tokenizer, tasks, questions)
    mx.enable_compile()


@pytest.mark.parametrize(("task", "sampling"), dict.fromkeys(REAL))
def test_parity(subject: Subject, task: str, sampling: str) -> None:
    """C4 and C5: the tokens and log probabilities are those of plain decoding."""
    if task not in subject.tasks:
        pytest.skip("not offered: the fixture was not trained for it")
    of, prompt = (subject.model, subject.tokenizer), encode(subject.tokenizer, subject.tasks[task])
    plain, drafted = (run(*of, prompt, **(SAMPLING[sampling]() | how)) for how in ({}, DRAFT))
    same(sampling, plain, drafted)
    assert task != "rewrite" or drafted.drafted > drafted.accepted > 0, (
        "not shown: no draft was rejected, or none taken"
    )


@pytest.mark.parametrize("n", [1, 9])
def test_exits(subject: Subject, n: int) -> None:
    """C3: generation that is closed after some tokens leaves the cache that plain decoding leaves."""
    of, prompt = (subject.model, subject.tokenizer), encode(subject.tokenizer, subject.tasks["rewrite"])
    more = subject.tokenizer.encode("\nAgain:", add_special_tokens=False)
    caches = [make_prompt_cache(subject.model) for _ in range(2)]
    for cache, draft in zip(caches, ({}, DRAFT), strict=True):
        run(*of, prompt, n, prompt_cache=cache, **draft)
    plain, drafted = map(offsets_of, caches)
    if plain != drafted:
        broken(f"closed after {n}: the cache says {drafted[0]} instead of {plain[0]} tokens")
    same(f"closed after {n}, the next turn", *(run(*of, more, prompt_cache=cache) for cache in caches))


def test_a_chat_of_several_turns(subject: Subject) -> None:
    """C3 and C4: each turn goes on from the cache of the one before, as in mlx_lm.chat."""
    of, caches = (subject.model, subject.tokenizer), [make_prompt_cache(subject.model) for _ in range(2)]
    for number, question in enumerate(subject.questions, 1):
        prompt = encode(subject.tokenizer, [{"role": "user", "content": question}])
        turns = [run(*of, prompt, prompt_cache=cache, **how) for cache, how in zip(caches, ({}, DRAFT), strict=True)]
        same(f"turn {number}", *turns)
        plain, drafted = map(offsets_of, caches)
        if plain != drafted:
            broken(f"turn {number}: the cache says {drafted[0]} instead of {plain[0]} tokens")


def test_rows_of_a_batch(subject: Subject, record_property: Callable[[str, object], None]) -> None:
    """C10: each row of a drafted batch is what it is alone, or what plain decoding makes of it in the same batch."""
    named = [name for name in ("rewrite", "document", "fill_json", "answer") if name in subject.tasks]
    of, prompts = (subject.model, subject.tokenizer), [encode(subject.tokenizer, subject.tasks[name]) for name in named]
    plain, drafted = (batch_generate(*of, prompts, max_tokens=TOKENS, **how).texts for how in ({}, DRAFT))
    alone = [subject.tokenizer.decode(run(*of, prompt).tokens, skip_special_tokens=True) for prompt in prompts]
    # That is the library's doing.
    other = sum(a != b for a, b in zip(plain, alone, strict=True))
    record_property("rows of the plain batch that differ from the row alone", other)
    for name, *texts, text in zip(named, plain, alone, drafted, strict=True):
        if text not in texts:
            broken(f"the row {name} is {text!r} instead of {texts[0]!r}")


@real
@pytest.mark.parametrize("name", MODELS)
def test_conformance_check(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a user runs to see whether a model is decoded exactly. The prompts that it has take this model an hour."""
    prompts = tmp_path / "prompts"
    prompts.write_text("\n".join(json.dumps(TASKS[task]()[0]["content"]) for task in ("rewrite", "answer")))
    options = ["--prompts", str(prompts), "--max-tokens", "16"]
    assert main(["check", "--model", name, *options]) == 0, capsys.readouterr().out
