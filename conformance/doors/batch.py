"""A batch: requests, their samplers and processors, and the answer of plain decoding to each request alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step

# A release has no costs, and batches without drafts are asked of any tree.
try:
    from mlx_lm.draft.costs import BlockCosts
except ImportError:
    FREE: Any = None
else:
    # The costs of blocks in a batch that also has rows without drafts: zero, so that all drafts are fed.
    FREE = BlockCosts((1, 1024), (1.0, 1.0))

VOCAB, DRAFT = 64, 5
# The noise of a forward pass may swap two candidates that are closer than this.
NEAR_TIE = 1e-3
# Log probabilities are closer than that. Noise is far below, a fault far above.
CLOSE = 6e-4


def likeliest(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


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
        return likeliest(scores)


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
    stats: Any = None

    def options(self) -> dict[str, Any]:
        """What a batch is told of the request. A tree need not know what it does not ask for."""
        options: dict[str, Any] = {}
        if self.cache is not None:
            options |= {"caches": self.cache, "all_tokens": list(self.held)}
        if self.sampler is not None:
            options["samplers"] = self.sampler
        if self.processors:
            options["logits_processors"] = list(self.processors)
        if self.stop:
            from mlx_lm.generate import StopSequences

            options["stop_sequences"] = StopSequences([self.stop])
        if self.strategy is not None:
            from mlx_lm.draft import DraftStats, Planner

            self.stats = DraftStats()
            options["planners"] = Planner(self.strategy, self.num_draft_tokens, self.stats, self.costs)
        return options


def insert(generator: BatchGenerator, request: Request) -> int:
    """Insert a request. Returns its id in the generator."""
    options = {name: [value] for name, value in request.options().items()}
    uid: int
    (uid,) = generator.insert([list(request.prompt)], [request.max_tokens], **options)
    return uid


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
        request.sampler = breaking(request.sampler or likeliest, at)
    elif part == "processor":
        request.processors = [*request.processors, breaking(lambda _, logits: logits, at)]
    else:
        setattr(request.strategy, part, breaking(getattr(request.strategy, part), at))
