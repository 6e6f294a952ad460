"""Requests of a batch with scripted drafts, the answers of a batch, and the answer of each request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.draft import BlockCosts, DraftStats, Planner
from mlx_lm.generate import BatchGenerator, StopSequences, generate_step
from mlx_lm.sample_utils import greedy_sampler

from conformance.drafters import Partly
from conformance.oracle.recorder import gap, next_turn
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import model_of

VOCAB, DRAFT = 64, 5
# The costs of blocks in a batch that also has rows without drafts: zero, so that all drafts are fed.
FREE = BlockCosts((1, 1024), (1.0, 1.0))
# The noise of a forward pass may swap two candidates that are closer than this.
NEAR_TIE = 1e-3
# Limits for log probabilities and for the larger logits of a next turn. Noise is far below, a fault far above.
CLOSE, CLOSE_AFTER = 1e-3, 1e-2


class Drawing:
    """A sampler with its own random key. An extra call or a wrong order changes all later draws."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.key = mx.random.key(5)
        # The lead of each token over the second-best one.
        self.margins: list[float] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.key, key = mx.random.split(self.key)
        scores = logprobs + self.temperature * mx.random.gumbel(logprobs.shape, key=key)
        best = mx.sort(scores, axis=-1)[0, -2:]
        self.margins.append((best[1] - best[0]).item())
        return greedy_sampler(scores)


class Watching:
    """A logits processor that records the tokens it sees, and raises the logit of another token at each call."""

    def __init__(self) -> None:
        self.histories: list[list[int]] = []

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.histories.append(tokens.tolist())
        return logits.at[:, 11 * len(self.histories) % VOCAB].add(2.0)


@dataclass
class Alone:
    """The answer of plain decoding to a prompt."""

    tokens: list[int]
    rows: list[mx.array]
    # The number of tokens before the first near tie. Any way to compute them gives the same.
    sure: int


def alone(model: Any, prompt: Sequence[int], n: int, temperature: float = 0, processors: Sequence[Any] = ()) -> Alone:
    drawing = Drawing(temperature)
    steps = generate_step(
        mx.array(prompt), model, max_tokens=n, sampler=drawing, logits_processors=list(processors) or None
    )
    tokens, rows = zip(*steps, strict=True)
    ties = (i for i, margin in enumerate(drawing.margins[:n]) if margin < NEAR_TIE)
    return Alone(list(tokens), list(rows), next(ties, n))


def prompt_of(length: int) -> list[int]:
    return [(7 * i + 3 * length) % VOCAB for i in range(length)]


@cache
def right_of(family: str, prompt: tuple[int, ...], n: int, temperature: float = 0, processed: bool = False) -> Alone:
    processors = [Watching()] if processed else []
    return alone(model_of(family).model, prompt, n, temperature, processors)


@dataclass
class Request:
    prompt: Sequence[int]
    max_tokens: int
    strategy: Any = None
    sampler: Any = None
    processors: Sequence[Any] = ()
    # The stop sequence.
    stop: Sequence[int] = ()
    # A cache to start from, and the tokens that it holds.
    cache: list[Any] | None = None
    held: Sequence[int] = ()
    num_draft_tokens: int = DRAFT
    costs: Any = None
    # What drafting did, once the request is inserted.
    stats: DraftStats | None = None

    def plan(self) -> Planner | None:
        if self.strategy is None:
            return None
        self.stats = DraftStats()
        return Planner(self.strategy, self.num_draft_tokens, self.stats, self.costs)


def insert(generator: BatchGenerator, request: Request) -> int:
    """Insert a request. Returns its id in the generator."""
    uid: int
    (uid,) = generator.insert(
        [list(request.prompt)],
        [request.max_tokens],
        caches=None if request.cache is None else [request.cache],
        all_tokens=[list(request.held)],
        samplers=[request.sampler],
        logits_processors=[list(request.processors)],
        stop_sequences=[StopSequences([request.stop] if request.stop else None)],
        planners=[request.plan()],
    )
    return uid


def asked(
    family: str,
    length: int,
    n: int,
    share: float | None = None,
    temperature: float = 0,
    processed: bool = False,
    **more: Any,
) -> tuple[Request, Alone]:
    """A request for n tokens, and its answer alone, which may be longer.

    A share of each draft is right. None means no drafts.
    """
    prompt = prompt_of(length)
    right = right_of(family, tuple(prompt), max(n, 30), temperature, processed)
    script = None if share is None else Partly(prompt + right.tokens, share)
    sampler, processors = Drawing(temperature) if temperature else None, [Watching()] if processed else []
    return Request(prompt, n, script, sampler, processors, **more), right


@dataclass
class Answer:
    """The responses of a batch to one request."""

    tokens: list[int] = field(default_factory=list)
    rows: list[mx.array] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    # The last response.
    last: Any = None
    stats: DraftStats | None = None

    def take(self, response: Any) -> None:
        assert self.last is None, "there are responses after the last one"
        if response.finish_reason is not None:
            self.last = response
        if response.finish_reason != "error":
            self.tokens.append(response.token)
            self.rows.append(response.logprobs)
            self.drafted.append(response.from_draft)


def answers(generator: BatchGenerator, requests: Iterable[Request]) -> list[Answer]:
    """Serve requests that come at the same time."""
    found = {insert(generator, request): Answer(stats=request.stats) for request in requests}
    while responses := generator.next_generated():
        for response in responses:
            found[response.uid].take(response)
    return list(found.values())


def until(tokens: Sequence[int], max_tokens: int, stop: Sequence[int]) -> tuple[list[int], str]:
    """The part of an answer that has to be returned, and the finish reason."""
    for n in range(1, max_tokens + 1):
        if stop and list(tokens[max(n - len(stop), 0) : n]) == list(stop):
            return list(tokens[:n]), "stop"
    return list(tokens[:max_tokens]), "length"


@cache
def turn(family: str, tokens: tuple[int, ...]) -> list[mx.array]:
    """The next turn on a cache that holds exactly these tokens."""
    model = model_of(family).model
    layers = make_cache(model)
    if tokens:
        model(mx.array([tokens]), cache=layers)
    return next_turn(model, layers)


def holds(family: str, layers: list[Any], tokens: Sequence[int]) -> bool:
    """Whether a cache behaves as if it was fed these tokens. A next turn is fed to it."""
    return gap(next_turn(model_of(family).model, layers), turn(family, tuple(tokens))) < CLOSE_AFTER


def check_answer(family: str, request: Request, right: Alone, got: Answer) -> None:
    """A row has the tokens, the log probabilities, the end and the cache that it has alone."""
    tokens, reason = until(right.tokens, request.max_tokens, request.stop)
    assert (got.tokens, got.last.finish_reason, got.last.error) == (tokens, reason, None)
    assert gap(got.rows, right.rows[: len(tokens)]) < CLOSE
    text = [*request.prompt, *tokens]
    assert got.last.all_tokens == text
    assert holds(family, got.last.prompt_cache, text)


class Broken(Exception):
    """The error that a part of a request raises."""


def breaking(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap a function so that it raises at call number ``at``, counted from 0."""
    calls = count()

    def called(*args: Any) -> Any:
        if next(calls) == at:
            raise Broken(f"call {at}")
        return function(*args)

    return called


def break_part(request: Request, part: str, at: int) -> None:
    """Make the sampler, the processor or a strategy method of a request raise."""
    if part == "sampler":
        request.sampler = breaking(request.sampler or greedy_sampler, at)
    elif part == "processor":
        request.processors = [*request.processors, breaking(lambda _, logits: logits, at)]
    else:
        setattr(request.strategy, part, breaking(getattr(request.strategy, part), at))
