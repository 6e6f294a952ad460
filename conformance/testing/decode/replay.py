"""Decode one continuation in several ways and measure how far their logits are apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream

from conformance.testing.drafts.scripted import Scripted
from conformance.testing.models.architectures import make_cache
from conformance.testing.tally import TALLY

# Stock releases have none, and are measured too.
if TYPE_CHECKING:
    from mlx_lm.draft import DraftStats

Step = tuple[int, mx.array]
DRAFT = 4


@dataclass
class Run:
    """Tokens and log probabilities of a decode, then those of a few fixed tokens fed to the cache it left."""

    steps: list[Step]
    after: list[mx.array]


def gap(a: Iterable[mx.array], b: Iterable[mx.array]) -> float:
    """The largest difference; infinite logits (masked tokens) are equal to themselves."""
    pairs = zip(a, b, strict=True)
    return max(float(mx.where(x == y, 0.0, mx.abs(x.astype(mx.float32) - y)).max().item()) for x, y in pairs)


def next_turn(model: Any, cache: list[Any]) -> list[mx.array]:
    """The logits of two single tokens and a block: what a second turn on this cache would see."""
    outputs = [model(mx.array([tokens]), cache=cache)[0, -1] for tokens in ([7], [9], [11, 12, 13])]
    mx.eval(outputs)
    return outputs


def plain(model: Any, prompt: list[int], n: int, **kwargs: Any) -> Run:
    cache = make_cache(model)
    steps = list(generate_step(mx.array(prompt), model, max_tokens=n, prompt_cache=cache, **kwargs))
    return Run(steps, next_turn(model, cache))


def drafted(model: Any, prompt: list[int], n: int, drafter: Scripted, stats: DraftStats | None = None) -> Run:
    from mlx_lm.draft import DraftStats
    from mlx_lm.draft.loop import draft_generate_step
    from mlx_lm.draft.planner import Planner
    from mlx_lm.draft.verify import BlockVerifier

    cache = make_cache(model)
    planner = Planner(drafter, DRAFT, DraftStats() if stats is None else stats)
    steps = draft_generate_step(mx.array(prompt), BlockVerifier(model, cache), planner, generation_stream, max_tokens=n)
    pairs = [(token, logprobs) for token, logprobs, _ in steps]
    TALLY["tokens"] += len(pairs)
    return Run(pairs, next_turn(model, cache))


def in_blocks(model: Any, prompt: list[int], tokens: list[int], length: int) -> list[mx.array]:
    """Log probabilities of a continuation that is fed in blocks of one length and never trimmed."""
    cache = make_cache(model)
    model(mx.array([prompt[:-1]]), cache=cache)
    fed, rows = [prompt[-1], *tokens[:-1]], []
    for start in range(0, len(fed), length):
        logits = model(mx.array([fed[start : start + length]]), cache=cache)[0]
        rows += [row - mx.logsumexp(row, keepdims=True) for row in logits]
    mx.eval(rows)
    return rows


def noises(model: Any, prompt: list[int], reference: Run) -> Iterator[float]:
    """How far the rows of blocks of each length are from single steps, without any rollback; the longest first."""
    tokens = [token for token, _ in reference.steps]
    wanted = [logprobs for _, logprobs in reference.steps]
    for length in range(DRAFT + 1, 1, -1):
        yield gap(in_blocks(model, prompt, tokens, length), wanted)


def noise(model: Any, prompt: list[int], reference: Run) -> float:
    """The largest of them: the model's own noise, and that of the kernels."""
    return max(noises(model, prompt, reference))
