"""The tasks of the benchmark: conversations with a fixed seed, for each class of text in published measurements.

The fixture can repeat a text, change a name or a value, and look up records. Its other answers are arbitrary text. So
a class has up to two forms. In "own" the model answers freely. In "given" the answer is known, and the logits are
replaced so that the model says it. The model computes everything in both forms; only the choice of the token is fixed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from conformance.lab.bench.models import Cache, Subject
from conformance.lab.streams import CHARS_PER_TOKEN, corpus
from conformance.lab.texts import workloads
from conformance.lab.texts.workloads import Corpus
from conformance.subjects.prompts import Message, chat, fenced, repeat

SEED = "bench 1"
OWN, GIVEN = "own", "given"
# The length of the text in a short prompt, in tokens of the fixture, and of a text that is edited turn after turn.
SHORT, LONG = 220, 600
FILLERS = ("rename", "echo", "json", "lookup", "quote")

Draw = Callable[[random.Random, Corpus, int], list[Message]]


@dataclass(frozen=True)
class Task:
    """A request with the conversation before it, and its answer if that is given."""

    workload: str
    name: str
    messages: list[Message]
    answer: str
    form: str = OWN
    size: str = "short"
    turn: int = 1

    def labels(self) -> dict[str, str | int]:
        labels: dict[str, str | int] = {"workload": self.workload, "task": self.name, "answer": self.form}
        return labels | {"size": self.size, "turn": self.turn}

    def encoded(self, subject: Subject) -> tuple[list[int], list[int]]:
        """The tokens of the prompt, and of prompt and answer if the answer is given."""
        prompt, tokenizer = subject.encode(self.messages), subject.tokenizer
        answer = [*tokenizer.encode(self.answer, add_special_tokens=False), tokenizer.eos_token_id]
        return prompt, [*prompt, *answer] if self.form == GIVEN else []


def summary(rng: random.Random, corpus: Corpus, chars: int) -> list[Message]:
    """A request for a summary. The answer is the first sentences of the text."""
    text = corpus.paragraph(rng, chars)
    return chat(f"Summarise this.\n{fenced(text)}", text[: chars // 3].rsplit(" ", 1)[0] + ".")


def ambiguous(rng: random.Random, _: Corpus, chars: int) -> list[Message]:
    """A few 3-grams in random order. The end always matches, but the next token is random."""
    names = "item value count total first last node path".split()
    grams = [" ".join(rng.choice(names) for _ in range(3)) for _ in range(8)]
    text, answer = (" ".join(rng.choice(grams) for _ in range(chars // 12)) for _ in range(2))
    return chat(f"Write prose.\n{fenced(text)}", answer)


def drawn(*kinds: str) -> Draw:
    return lambda rng, corpus, chars: workloads.draw(rng, corpus, rng.choice(kinds), chars)


WORKLOADS: dict[str, Draw] = {
    "json_rag": drawn("json"),
    "passage": lambda rng, corpus, chars: repeat(corpus.paragraph(rng, chars)),
    "code": drawn("replace"),
    "echo": lambda rng, corpus, chars: repeat(corpus.snippet(rng, chars)),
    "delete": drawn("delete"),
    "code-edit": drawn("rename"),
    "qa-short": drawn("quote", "lookup"),
    "agent": drawn("agent"),
    "summarise": summary,
    "tools": drawn("tool"),
    "prose": drawn("prose"),
    "ambiguous": ambiguous,
}
# The requests that the fixture does not answer correctly.
ALSO_GIVEN = ("code", "delete", "agent", "summarise", "prose", "ambiguous")
IN_CONTEXT = ("echo", "code-edit", "qa-short")


def conversation(rng: random.Random, draw: Draw, tokens: int, least: int = 0) -> list[Message]:
    """Draw until a text suits the request: not every text does."""
    while True:
        messages = draw(rng, corpus(), int(tokens * CHARS_PER_TOKEN))
        if messages and len(messages) > least:
            return messages


def single(workload: str, index: int, tokens: int = SHORT) -> Task:
    rng = random.Random(f"{SEED} {workload} {index}")
    *messages, answer = conversation(rng, WORKLOADS[workload], tokens)
    return Task(workload, f"{workload} {index + 1}", messages, answer["content"])


def filler(subject: Subject, tokens: int) -> list[Message]:
    """About ``tokens`` tokens of earlier requests and answers."""
    rng = random.Random(f"{SEED} filler")
    messages: list[Message] = []
    while not messages or len(subject.encode(messages, answered=True)) < tokens:
        messages += conversation(rng, drawn(*FILLERS), 300)
    return messages


def in_context(subject: Subject, contexts: Iterable[int]) -> Iterator[Task]:
    """Short requests after a long conversation. The fixture has not learned such contexts, so the answer is given."""
    for context in contexts:
        before = filler(subject, context - 400)
        for workload in IN_CONTEXT:
            task = single(workload, 0)
            yield replace(task, messages=before + task.messages, size=f"{context // 1024}k", form=GIVEN)


def edits(turns: int) -> Iterator[Task]:
    """Edits of one text, turn after turn. The answers are given, and right."""

    def draw(rng: random.Random, corpus: Corpus, chars: int) -> list[Message]:
        return workloads.edit_chat(rng, corpus.snippet(rng, chars), turns)

    for workload, tokens in (("edits-short", SHORT), ("edits-long", LONG)):
        messages = conversation(random.Random(f"{SEED} {workload}"), draw, tokens, least=2 * turns - 1)
        for turn in range(turns):
            asked, answer = messages[: 2 * turn + 1], messages[2 * turn + 1]["content"]
            yield Task(workload, f"{workload} {turn + 1}", asked, answer, GIVEN, turn=turn + 1)


def singles(names: Iterable[str], prompts: int) -> Iterator[Task]:
    """Some prompts of each kind. Of what the fixture cannot do, its own answer is measured once."""
    for workload in names:
        for index in range(prompts):
            task, given = single(workload, index), workload in ALSO_GIVEN
            yield from [task] * (index == 0 or not given)
            yield from [replace(task, form=GIVEN)] * given


class Dictated:
    """A model that computes everything, and then returns the logits of a known continuation."""

    def __init__(self, model: Any, text: list[int]) -> None:
        self.model, self.text = model, mx.array([*text, *text[-1:]])
        self.layers = model.layers

    def __call__(self, inputs: mx.array, cache: Cache) -> mx.array:
        logits = self.model(inputs, cache=cache)
        end = cache[0].offset + 1
        wanted = self.text[mx.minimum(mx.arange(end - inputs.shape[1], end), len(self.text) - 1)]
        return mx.where(mx.arange(logits.shape[-1]) == wanted[:, None], 1e3, logits)
