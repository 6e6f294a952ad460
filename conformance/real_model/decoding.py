"""Decode with a model and its tokenizer as a user's program does, plainly and with drafts, and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.generate import stream_generate
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance.oracle.findings import broken

SEED, TOKENS = 7, 32
# Options of stream_generate: how to sample, and what is done with the logits before.
SAMPLING: dict[str, Callable[[], dict[str, Any]]] = {
    "greedy": dict,
    "sampled": lambda: {"sampler": make_sampler(0.8, top_p=0.95)},
    "penalized": lambda: {"logits_processors": make_logits_processors({11: -2.0}, 1.1, 20)},
}
# Drafts that do not pay as well: they are rejected, which is what may go wrong.
DRAFT: dict[str, Any] = {"draft_type": "auto", "disable_adaptive_gate": True}


@dataclass(frozen=True)
class Run:
    tokens: list[int]
    rows: list[mx.array]
    # How many tokens were drafted, and how many of them accepted.
    drafted: int
    accepted: int


def run(model: Any, tokenizer: Any, prompt: Sequence[int], n: int = TOKENS, **options: Any) -> Run:
    """Decode up to ``n`` tokens, and keep the log probabilities of each."""
    mx.random.seed(SEED)
    # Closed after n of them, as a user's loop that breaks.
    steps = stream_generate(model, tokenizer, list(prompt), max_tokens=TOKENS, **options)
    found = list(islice(steps, n))
    steps.close()
    draft = found[-1].draft
    counts = (draft.drafted, draft.accepted) if draft else (0, 0)
    return Run([step.token for step in found], [step.logprobs for step in found], *counts)


def same(what: str, plain: Run, drafted: Run) -> None:
    """The tokens of a drafted run are those of the plain one, and on a CPU each bit of the log probabilities."""
    if plain.tokens != drafted.tokens:
        pairs = enumerate(zip(plain.tokens, drafted.tokens, strict=False))
        first = next((f"token {i} is {b} instead of {a}" for i, (a, b) in pairs if a != b), "another number of tokens")
        broken(f"{what}: {first}")
    if mx.default_device().type == mx.cpu:
        for i, (a, b) in enumerate(zip(plain.rows, drafted.rows, strict=True)):
            if not mx.array_equal(a, b):
                broken(f"{what}: the log probabilities of token {i} differ by {mx.abs(a - b).max().item():g}")
