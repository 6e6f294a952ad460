"""What is asked of a model with a tokenizer, drafted beside plain decoding. Each check returns what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.generate import batch_generate, stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance.oracle.recorder import offsets_of
from conformance.smollm2.tasks import encode
from conformance.subjects.prompts import Message

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
    drafted: int


def run(model: Any, tokenizer: Any, prompt: Sequence[int], n: int = TOKENS, **options: Any) -> Run:
    """Decode up to ``n`` tokens, and keep the log probabilities of each."""
    mx.random.seed(SEED)
    # Closed after n of them, as a user's loop that breaks.
    steps = stream_generate(model, tokenizer, list(prompt), max_tokens=TOKENS, **options)
    found = list(islice(steps, n))
    steps.close()
    draft = found[-1].draft
    return Run([step.token for step in found], [step.logprobs for step in found], draft.drafted if draft else 0)


def between(what: str, plain: Run, drafted: Run) -> list[str]:
    """How a drafted run differs from the plain one: its tokens, or on a CPU a bit of the log probabilities."""
    if plain.tokens != drafted.tokens:
        same = sum(a == b for a, b in zip(plain.tokens, drafted.tokens, strict=False))
        return [f"{what}: other tokens, {same} of {len(plain.tokens)} are the same"]
    if mx.default_device().type != mx.cpu:
        return []
    rows = zip(plain.rows, drafted.rows, strict=True)
    wrong = [i for i, (a, b) in enumerate(rows) if not mx.array_equal(a, b)]
    return [f"{what}: the log probabilities of token {wrong[0]} differ"] if wrong else []


def parity(model: Any, tokenizer: Any, messages: list[Message], sampling: str) -> list[str]:
    """C4 and C5: the tokens and log probabilities are those of plain decoding."""
    prompt = encode(tokenizer, messages)
    plain = run(model, tokenizer, prompt, **SAMPLING[sampling]())
    return between(sampling, plain, run(model, tokenizer, prompt, **SAMPLING[sampling](), **DRAFT))


def exits(model: Any, tokenizer: Any, messages: list[Message], after: Sequence[int]) -> list[str]:
    """C3: generation that is closed after some tokens leaves the cache that plain decoding leaves."""
    prompt, more = encode(tokenizer, messages), tokenizer.encode("\nAgain:", add_special_tokens=False)
    wrong = []
    for n in after:
        offsets, turns = [], []
        for draft in ({}, DRAFT):
            cache = make_prompt_cache(model)
            run(model, tokenizer, prompt, n, prompt_cache=cache, **draft)
            offsets.append(offsets_of(cache))
            turns.append(run(model, tokenizer, more, prompt_cache=cache))
        if offsets[0] != offsets[1]:
            wrong.append(f"closed after {n}: the cache holds {offsets[1][0]} tokens, not {offsets[0][0]}")
        wrong += between(f"closed after {n}, the next turn", *turns)
    return wrong


def conversation(model: Any, tokenizer: Any, questions: Sequence[str]) -> list[str]:
    """C3 and C4: a chat of several turns, each of which goes on from the cache of the one before."""
    caches = [make_prompt_cache(model), make_prompt_cache(model)]
    wrong = []
    for number, question in enumerate(questions, 1):
        # As mlx_lm.chat does: the cache holds what came before.
        prompt = encode(tokenizer, [{"role": "user", "content": question}])
        options = ({"prompt_cache": caches[0]}, {"prompt_cache": caches[1], **DRAFT})
        wrong += between(f"turn {number}", *(run(model, tokenizer, prompt, **one) for one in options))
        if offsets_of(caches[0]) != offsets_of(caches[1]):
            wrong.append(f"turn {number}: the caches hold other numbers of tokens")
    return wrong


def batch(model: Any, tokenizer: Any, conversations: Sequence[list[Message]]) -> tuple[list[str], int]:
    """C10: each row of a drafted batch is what it is alone, or what plain decoding makes of it in the same batch.

    The second value is how many rows differ between those two, which is the library's doing.
    """
    prompts = [encode(tokenizer, messages) for messages in conversations]
    plain, drafted = (
        batch_generate(model, tokenizer, prompts, max_tokens=TOKENS, **draft).texts for draft in ({}, DRAFT)
    )
    alone = [tokenizer.decode(run(model, tokenizer, prompt).tokens, skip_special_tokens=True) for prompt in prompts]
    rows = enumerate(zip(plain, drafted, alone, strict=True))
    wrong = [f"row {i}: {b!r}, not {a!r}" for i, (a, b, c) in rows if b not in (a, c)]
    return wrong, sum(a != b for a, b in zip(plain, alone, strict=True))
