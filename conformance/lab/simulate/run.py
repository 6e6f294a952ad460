"""Decode recorded streams with the package's own loop. A stand-in for the model knows the answer and counts costs."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft import (
    BlockCosts,
    DraftStats,
    EditStrategy,
    LearnedCosts,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    Planner,
    SuffixStrategy,
)
from mlx_lm.draft.loop import draft_generate_step
from mlx_lm.draft.options import DEFAULT_NGRAM_MOD_SIZE, planner_for
from mlx_lm.draft.planner import MAX_AUTO_DRAFT
from mlx_lm.draft.verify import MAX_REPLAY_BLOCK, NO_LIMIT

from conformance.lab.streams import VOCAB, Request, Stream

# Measured with a bf16 llama of 24 M parameters on one CPU core.
CPU = BlockCosts((1, 2, 3, 5, 9, 17), (1, 1.33, 1.67, 2.37, 3.78, 7.15))
# Reported for an M4 Pro with 4-bit weights.
M4 = BlockCosts((1, 2, 3, 4, 6, 8), (1, 1.03, 1.22, 1.47, 2.07, 2.69))
# A data-centre GPU, limited by its memory bandwidth.
GPU = BlockCosts((1, 2, 64), (1, 1.02, 1.3))
TABLES = {"cpu": CPU, "m4": M4, "gpu": GPU}
# A stream needs this many tokens to count as the worst one: in a shorter one a single draft weighs too much.
LEAST = 60
Make = Callable[[], Any]
# Turns a cost, in passes of one token, into seconds.
Clock = Callable[[float], float]


def makers() -> dict[str, Make]:
    """The package's strategies. Responses share one ngram-mod table, as in a server."""
    table = NgramModTable(DEFAULT_NGRAM_MOD_SIZE, vocab_size=VOCAB)
    return {
        "edit": EditStrategy,
        "suffix": SuffixStrategy,
        "ngram-simple": NgramSimpleStrategy,
        "ngram-mod": lambda: NgramModStrategy(table, lookup=EditStrategy()),
    }


def costs_of(text: str) -> tuple[str, BlockCosts]:
    """The name and the costs of a device, or of a file that ``python -m conformance probe --json`` wrote."""
    if text in TABLES:
        return text, TABLES[text]
    try:
        rows = json.loads(Path(text).read_text("utf-8"))["rows"]
        # The time of a longer block may have been less, by chance.
        costs = accumulate((row["cost"] for row in rows), max)
        return Path(text).name, BlockCosts([row["length"] for row in rows], list(costs))
    except (OSError, ValueError, LookupError, TypeError) as error:
        told = f"{text} is none of {', '.join(TABLES)}, and no file that `python -m conformance probe --json` wrote"
        raise argparse.ArgumentTypeError(f"{told}: {error!r}") from error


@dataclass
class Result:
    """How many tokens came out, forward passes ran and tokens were fed, and the cost in passes of one token."""

    emitted: int = 0
    forwards: int = 0
    fed: int = 0
    spent: float = 0.0
    # Passes that began before the token they feed was known.
    ahead: int = 0

    def __add__(self, other: Result) -> Result:
        return Result(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def speed(self) -> float:
        return self.emitted / self.spent

    @property
    def tokens_a_forward(self) -> float:
        return self.emitted / self.forwards

    @property
    def fed_a_token(self) -> float:
        return self.fed / self.emitted


class Row:
    """The results of one strategy for each workload, and its worst stream."""

    def __init__(self) -> None:
        self.by_name: dict[str, Result] = {}
        self.worst, self.worst_name = math.inf, ""

    def add(self, stream: Stream, result: Result) -> None:
        self.by_name[stream.name] = self.by_name.get(stream.name, Result()) + result
        if stream.n_answered >= LEAST and result.speed < self.worst:
            self.worst, self.worst_name = result.speed, f"{stream.name}, {stream.n_answered} tokens"

    def mean(self, value: str) -> float:
        """Of the kinds of work: names in brackets are none."""
        return geometric_mean(getattr(result, value) for name, result in self.by_name.items() if name[0] != "(")


class KnownVocabulary:
    """Of a planner: the logits of a stand-in are narrow, and its passes take no time."""

    vocab_size = property(lambda self: VOCAB, lambda self, n: None)
    # The token that is drawn last and not fed. What responses share learns it too.
    last: Sequence[int] = ()
    waits = False

    def runs_ahead(self) -> bool:
        return not self.waits and super().runs_ahead()  # type: ignore[misc]

    def close(self, n_accepted: int, tokens: Sequence[int]) -> None:
        super().close(n_accepted, [*tokens, *self.last])  # type: ignore[misc]

    def learn(self, n_tokens: int, seconds: float, ahead: bool = False) -> None:
        pass


class Answering:
    """Takes the place of a ``BlockVerifier``. What the model says comes from the sampler, token by token."""

    def __init__(
        self, planner: Planner, costs: BlockCosts, learned: LearnedCosts | None, clock: Clock, replays: bool
    ) -> None:
        self.planner, self.costs, self.learned, self.clock = planner, costs, learned, clock
        self.replays, self.cache, self.replay = replays, list[Any](), list[int]()
        self.forwards = self.block_length = 0
        self.drafts: list[list[int]] = []
        self.spent, self.ahead = 0.0, 0

    @property
    def n_replay(self) -> int | None:
        return len(self.replay) if self.replays else None

    def max_draft(self) -> int:
        return max((MAX_REPLAY_BLOCK if self.replay else int(NO_LIMIT)) - len(self.replay) - 1, 0)

    def prefill(self, tokens: mx.array) -> int:
        return VOCAB

    def verify(self, token: int | mx.array, draft: list[int]) -> mx.array:
        self.forwards, self.block_length = self.forwards + 1, len(self.replay) + 1 + len(draft)
        self.replay = []
        # Only a head takes time to draft, and the stages before heads have none.
        cost = self.costs(self.block_length) + getattr(self.planner, "draft_cost", 0.0)
        self.drafts.append(list(draft))
        self.spent += cost
        self.ahead += isinstance(token, mx.array)
        if self.learned is not None:
            self.learned.learn(self.block_length, self.clock(cost), ahead=isinstance(token, mx.array))
        return mx.zeros((1 + len(draft), 1))

    def accept(self, n_accepted: int) -> None:
        n_rejected = len(self.drafts[-1]) - n_accepted
        if self.replays and n_rejected > 0:
            self.replay = [0] * (self.block_length - n_rejected)

    def close(self) -> None:
        if self.replay:
            self.spent += self.costs(len(self.replay))


def decode(
    strategy: Any,
    request: Request,
    costs: BlockCosts = CPU,
    bound: int = MAX_AUTO_DRAFT,
    gated: bool = True,
    learned: LearnedCosts | None = None,
    clock: Clock = float,
    processors: Sequence[Any] = (),
    replays: bool = False,
    waits: bool = False,
) -> tuple[Result, list[list[int]]]:
    """Let the loop decode a known answer. Also returns the draft of each block.

    The planner knows ``costs``. With ``learned`` it knows only what that has learned from the times of the ``clock``.
    With ``waits`` each step knows its token before it asks for a draft, as in programs that do not run ahead.
    With ``replays`` the cache drops nothing, as that of deepseek_v41: what was right of a rejected block is fed again.
    """
    known = (learned or costs) if gated else None
    kind = type(planner_for(strategy, 0, DraftStats()))
    planner = type("Known", (KnownVocabulary, kind), {})(strategy, bound, DraftStats(), known, request.eos)
    planner.last, planner.waits = request.answer[-1:], waits
    model = Answering(planner, costs, learned, clock, replays)
    # Drawn once for each token, in order, as the loop promises.
    said = chain(request.answer, repeat(0))
    steps = draft_generate_step(
        mx.array(request.prompt),
        model,
        planner,
        mx.default_stream(mx.default_device()),
        # The last token is drawn and not fed.
        max_tokens=len(request.answer) - 1,
        sampler=lambda logprobs: mx.array([next(said)]),
        logits_processors=list(processors),
        prefill_step_size=NO_LIMIT,
    )
    # What is drawn is known, so there is nothing to compute.
    with patch.object(mx, "async_eval", lambda *_: None):
        tokens = [token for token, _, _ in steps]
    assert tokens == request.answer[:-1]
    fed = sum(1 + len(draft) for draft in model.drafts)
    return Result(len(request.answer), model.forwards, fed, model.spent, model.ahead), model.drafts


def run(make: Make, recorded: Sequence[Stream], costs: BlockCosts = CPU, **options: Any) -> Row:
    """Decode every stream. Each request gets a new strategy."""
    row = Row()
    for one in recorded:
        row.add(one, sum((decode(make(), request, costs, **options)[0] for request in one.requests), Result()))
    return row
