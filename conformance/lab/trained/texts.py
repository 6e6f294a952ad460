"""The texts that a head is trained on: with the model's own answers, and of no document that it is judged on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from conformance import FIXTURE, ROOT
from conformance.lab.recorded import sources
from conformance.lab.recorded.answers import EDITS, is_judge, read
from conformance.lab.recorded.pairs import BEFORE, BETWEEN
from conformance.lab.recorded.prompts import prompts
from conformance.lab.recorded.streams import EOS
from conformance.lab.texts.recorded_streams import conversation
from conformance.lab.texts.workloads import KINDS, Corpus, draw
from conformance.lab.trained.llama import Llama
from conformance.smollm2 import path_of
from conformance.subjects.prompts import Message

FOLDER = ROOT / "vendor" / "heads"
# Prompts of each kind, the longest answer, prompts that are answered together, and the most tokens of an edit.
EACH, LONGEST, ROWS, EDIT = 80, 96, 64, 1024
# Colder than what it is judged on, so that a text is like a greedy one, and warm enough to be another one.
TEMPERATURE = 0.5
# Conversations that the fixture reads.
CONVERSATIONS, CHARS = 1500, 800


@dataclass(frozen=True)
class Read:
    """A text as a model has read it: tokens, where its answer begins, and hidden states of all tokens but the last."""

    tokens: list[int]
    answer: int
    hidden: Tensor


def of_smollm2(model: Llama) -> Iterator[Read]:
    """What it answers to prompts like the recorded ones, and real edits, of documents that nothing is judged on."""
    sources.download()
    tokenizer = Tokenizer.from_file(f"{path_of('smollm2')}/tokenizer.json")

    def encode(messages: list[Message]) -> list[int]:
        return list(tokenizer.encode(BEFORE + messages[0]["content"] + BETWEEN).ids)

    def drawn(logits: Tensor) -> Tensor:
        return torch.multinomial(torch.softmax(logits / TEMPERATURE, -1), 1)[:, 0]

    torch.manual_seed(0)
    asked = [encode(p.messages) for p in prompts(lambda m: len(encode(m)), EACH, lambda source: not is_judge(source))]
    # Of about the same length together.
    asked.sort(key=len)
    for start in range(0, len(asked), ROWS):
        some = asked[start : start + ROWS]
        for prompt, (tokens, hidden) in zip(some, model.answers(some, LONGEST, {EOS}, drawn), strict=True):
            yield Read(tokens, len(prompt), hidden)
        print(f"answered {start + len(some)} of {len(asked)}", flush=True)
    for one in read(EDITS)[1]:
        if not is_judge(one["source"]):
            tokens = [*one["prompt"], *one["answer"]][:EDIT]
            yield from known(model, tokens, min(len(one["prompt"]), EDIT))


def of_fixture(model: Llama) -> Iterator[Read]:
    """Conversations like those that the fixture was trained on."""
    tokenizer, corpus = Tokenizer.from_file(str(FIXTURE / "tokenizer.json")), Corpus.load(held_out=False)
    rng = random.Random("a head of the fixture")
    for _ in range(CONVERSATIONS):
        messages = draw(rng, corpus, rng.choice(KINDS), rng.randrange(200, CHARS))
        for request in conversation(messages, lambda text: list(tokenizer.encode(text).ids)):
            yield from known(model, request.prompt + request.answer, len(request.prompt))


@torch.inference_mode()
def known(model: Llama, tokens: list[int], answer: int) -> Iterator[Read]:
    if len(tokens) > 2:
        hidden, _ = model.read(torch.tensor([tokens[:-1]]), torch.tensor([0]), [None] * len(model.layers))
        yield Read(tokens, answer, hidden[0])


MODELS = {"smollm2": of_smollm2, "fixture": of_fixture}


def folder_of(name: str) -> str:
    return str(FIXTURE) if name == "fixture" else path_of(name)


def write(name: str) -> None:
    """Read all texts, and keep what was computed."""
    model = Llama(folder_of(name))
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = [vars(one) for one in MODELS[name](model)]
    torch.save(found, FOLDER / f"{name}.pt")
    print(json.dumps({"texts": len(found), "tokens": sum(len(one["tokens"]) for one in found)}))
