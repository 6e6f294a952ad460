"""The contracts on models with text: SmolLM2 (scripts/check.sh --model smollm2), and the fixture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import batch_generate, stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance import FIXTURE
from conformance.oracle.compare import compare_tokens, within
from conformance.oracle.findings import WHOLE, broken, not_shown
from conformance.oracle.recorder import offsets_of
from conformance.oracle.run import SEED, Case, Run
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TASKS, encode
from conformance.subjects.decoded import Family
from conformance.subjects.prompts import PROMPTS, Message, chat

TOKENS = 32
# How stream_generate samples, and what is done with the logits before.
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampler": make_sampler(0.8, top_p=0.95)},
    "penalized": {"logits_processors": make_logits_processors({11: -2.0}, 1.1, 20)},
}
# What is asked, a task or another text, and after how many tokens of the answer it is closed.
TALKS: dict[str, list[tuple[str, int]]] = {task: [(task, TOKENS)] for task in TASKS}
TALKS |= {f"closed after {n}": [("rewrite", n), ("Again.", TOKENS)] for n in (1, 9)}
TALKS["several turns"] = [
    ("rewrite", TOKENS),
    ("Write the same function again, with `text` renamed to `sentence`.", TOKENS),
    ("Write the first function again.", TOKENS),
]
# Not all tasks in all ways: a run of one takes seconds. A head is asked also where it does not pay.
ROWS = [(talk, "greedy", "auto") for talk in TALKS]
ROWS += [(task, way, "auto") for task in ("rewrite", "answer") for way in ("sampled", "penalized")]
ROWS += [("rewrite", "greedy", "head"), ("answer", "greedy", "head"), ("answer", "sampled", "head")]
# Of what the fixture was trained for, these reject most drafts.
FOR_FIXTURE = {"rewrite": PROMPTS["lookup"], "answer": PROMPTS["delete"]}
SUBJECTS = [pytest.param(name, marks=pytest.mark.real_model) for name in MODELS]
SUBJECTS += [pytest.param("fixture", marks=pytest.mark.selftest)]


@dataclass
class Subject:
    name: str
    model: Any
    tokenizer: Any

    def prompt(self, text: str) -> list[int]:
        """The tokens of a turn. The fixture was trained for tasks of its own."""
        messages: list[Message] = TASKS[text]() if text in TASKS else chat(text)
        return encode(self.tokenizer, FOR_FIXTURE.get(text, messages) if self.name == "fixture" else messages)

    def drafting(self, drafter: str) -> tuple[Any, dict[str, Any]]:
        """The model, and the options that draft with it."""
        if drafter != "head":
            return self.model, {"draft_type": drafter, **WHOLE}
        # A stage of the series may have no heads.
        from mlx_lm.draft import EditStrategy, HeadDraftStrategy, HeadedModel

        from conformance.lab.trained.head import load_head

        head = load_head("fixture" if self.name == "fixture" else "smollm2", self.model)
        return HeadedModel(self.model, head), {"draft_strategy": HeadDraftStrategy(EditStrategy()), **WHOLE}

    def turn(self, model: Any, prompt: list[int], n: int = TOKENS, cache: Any = None, **options: Any) -> Run:
        """Decode up to n tokens, as a program whose loop breaks then."""
        run = Run(Case(Family(self.name, "llama")), cache or make_prompt_cache(model))
        mx.random.seed(SEED)
        steps = stream_generate(model, self.tokenizer, prompt, max_tokens=TOKENS, prompt_cache=run.caches, **options)
        run.take_responses(islice(steps, n))
        steps.close()
        return run


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    model, tokenizer = load(str(FIXTURE) if request.param == "fixture" else path_of(request.param))
    if request.param == "fixture":
        # The first use of each compiled function starts a C++ compiler.
        mx.disable_compile()
    yield Subject(request.param, model, tokenizer)
    mx.enable_compile()


@pytest.mark.parametrize(("talk", "sampling", "drafter"), ROWS)
def test_a_talk(subject: Subject, talk: str, sampling: str, drafter: str) -> None:
    """C3, C4 and C5: each turn is that of plain decoding, and goes on from the cache of the one before."""
    drafted, of_all = subject.drafting(drafter), list[int]()
    pairs = [(model, how, make_prompt_cache(model)) for model, how in ((subject.model, {}), drafted)]
    for number, (text, n) in enumerate(TALKS[talk], 1):
        prompt, about = subject.prompt(text), f"turn {number}, {n} tokens: "
        right, got = (subject.turn(model, prompt, n, cache, **how, **SAMPLING[sampling]) for model, how, cache in pairs)
        # Elsewhere a block is computed in another order.
        compare_tokens(got, right, about, within(0.0 if mx.default_device().type == mx.cpu else math.inf))
        held, wanted = offsets_of(got.caches), offsets_of(right.caches)
        if held[: len(wanted)] != wanted:
            broken(f"{about}the cache says {held[0]} instead of {wanted[0]} tokens")
        of_all += [got.stats.drafted - got.stats.accepted, got.stats.accepted]
    if talk == "rewrite" and not (sum(of_all[::2]) and sum(of_all[1::2])):
        not_shown("no draft was rejected, or none taken")


def test_rows_of_a_batch(subject: Subject) -> None:
    """C10: each row of a drafted batch is what it is alone, or what plain decoding makes of it in the same batch."""
    named = FOR_FIXTURE if subject.name == "fixture" else ("rewrite", "document", "fill_json", "answer")
    prompts = [subject.prompt(name) for name in named]
    plain, drafted = (
        batch_generate(subject.model, subject.tokenizer, prompts, max_tokens=TOKENS, **how).texts
        for how in ({}, subject.drafting("auto")[1])
    )
    for name, prompt, text, other in zip(named, prompts, drafted, plain, strict=True):
        alone = subject.turn(subject.model, prompt).tokens
        if text not in (other, subject.tokenizer.decode(alone, skip_special_tokens=True)):
            broken(f"the row {name} is {text!r} instead of {other!r}")
