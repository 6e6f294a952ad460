"""Token streams with known answers, which take the place of a model: what SmolLM2 said, real edits, and made-up texts.

A seed gives the same made-up stream on every machine with the same Python standard library. Two workloads are bad cases
on purpose: "ambiguous" and "bait".
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from conformance import FIXTURE
from conformance.lab.recorded import FILES, read
from conformance.lab.texts import edits, workloads
from conformance.lab.texts.workloads import KINDS, Corpus
from conformance.subjects.prompts import Message

SIZES = (300, 1000, 2000)
# The approximate length of a token of the fixture, in characters.
CHARS_PER_TOKEN = 2.5
# Larger than all vocabularies here, and as large as those of large models.
VOCAB = 2**18 - 1
# All answers that run into a loop, whatever was asked. They are no kind of work: a loop flatters every drafter.
LOOPS = "(loops)"
# The id of <|im_end|>.
EOS = 2
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Request:
    """A request: the prompt with the whole conversation, and the known answer."""

    prompt: list[int]
    answer: list[int]
    eos: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stream:
    """The requests of one conversation."""

    name: str
    size: int
    seed: int
    requests: tuple[Request, ...]

    @property
    def n_answered(self) -> int:
        return sum(len(request.answer) for request in self.requests)


def loops(tokens: Sequence[int]) -> bool:
    """Whether the end repeats what stands right before it, three times or more."""
    sizes = range(1, len(tokens) // 3 + 1)
    return any(len(set(map(tuple, (tokens[-n:], tokens[-2 * n : -n], tokens[-3 * n : -2 * n])))) == 1 for n in sizes)


def recorded(record: dict[str, object], prompt: Sequence[int], answer: Sequence[int]) -> Stream:
    said = [token for token in answer if token != EOS]
    kind = LOOPS if loops(said) else str(record["kind"])
    return Stream(kind, len(prompt), 0, (Request(list(prompt), list(answer), (EOS,)),))


def load(what: str) -> list[Stream]:
    """The streams of "answers", "sampled" or "edits". Kinds stay together."""
    records = read(FILES[what])
    found = [recorded(one, one["prompt"], one["answer"]) for one in records]
    order = [*dict.fromkeys(one["kind"] for one in records), LOOPS]
    return sorted(found, key=lambda one: order.index(one.name))


@cache
def bpe() -> Encode:
    """The tokenizer of the fixture."""
    tokenizer = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@cache
def words() -> Encode:
    """A tokenizer with one token for each word. Real models with large vocabularies are close: 4 characters a token."""
    ids: dict[str, int] = {}
    pattern = re.compile(r"<\|\w+\|>| ?[A-Za-z]+|\d|\n *| +|[^\w\s]{1,2}|\S")
    return lambda text: [ids.setdefault(piece, len(ids)) for piece in pattern.findall(text)]


def conversation(messages: list[Message], encode: Encode) -> Iterator[Request]:
    """The requests of a conversation, in the chat template of the fixture."""
    history: list[int] = []
    eos = tuple(encode("<|end|>"))
    for message in messages:
        if message["role"] == "assistant":
            history = history + encode("<|assistant|>")
            answer = encode(message["content"]) + list(eos)
            yield Request(history, answer, eos)
            history = history + answer
        else:
            history = history + encode(f"<|{message['role']}|>{message['content']}<|end|>")


def ambiguous(rng: random.Random, size: int) -> Request:
    """A few 3-grams in random order. The end of the sequence always matches, but the next token is random."""
    grams = [[rng.randrange(16) for _ in range(3)] for _ in range(12)]
    tokens = [token for _ in range(2 * size // 3) for token in rng.choice(grams)]
    return Request(tokens[:size], tokens[size:])


def bait(rng: random.Random, size: int) -> Request:
    """Passages come again, each as long as where a drafter begins to trust a match. Something else follows it."""
    tokens = [rng.randrange(1000) for _ in range(size // 2)]
    while len(tokens) < 2 * size:
        n = rng.choice((4, 6, 8, 9, 10, 12))
        start = rng.randrange(len(tokens) - n)
        tokens += tokens[start : start + n]
        tokens += [1000 + rng.randrange(1000) for _ in range(rng.randint(1, 3))]
    return Request(tokens[:size], tokens[size : 2 * size])


ADVERSARIES: dict[str, Callable[[random.Random, int], Request]] = {"ambiguous": ambiguous, "bait": bait}
NAMES = (*KINDS, *ADVERSARIES)


@cache
def corpus() -> Corpus:
    return Corpus()


def stream(name: str, size: int, seed: int, encode: Encode) -> Stream:
    """A stream with about ``size`` tokens of prompt, and as many of answer if the answer repeats the prompt."""
    rng = random.Random(f"{name} {size} {seed}")
    if name in ADVERSARIES:
        return Stream(name, size, seed, (ADVERSARIES[name](rng, size),))
    draw = edits.draw if name in edits.NAMES else workloads.draw
    while True:
        requests = tuple(conversation(draw(rng, corpus(), name, int(size * CHARS_PER_TOKEN)), encode))
        # A module may be too short for the text.
        if requests and len(requests[-1].prompt) + len(requests[-1].answer) > size * 0.6:
            return Stream(name, size, seed, requests)


def streams(
    seeds: Sequence[int], sizes: Sequence[int] = SIZES, encode: Encode | None = None, names: Sequence[str] = NAMES
) -> list[Stream]:
    """Workloads of all sizes, from modules that were not used to choose the defaults of drafters."""
    return [stream(name, size, seed, encode or bpe()) for name in names for size in sizes for seed in seeds]
