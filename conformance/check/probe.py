"""Compare blocks of tokens with single tokens on a model and a device: bits, noise and cost, by length.

python -m conformance probe --model conformance/fixture

Nothing is drafted, and nothing is trimmed before the differences are known: they come from the model's own code and the
kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from conformance.check.prompts import built_in, encode
from conformance.lab.bench.models import block_seconds
from conformance.oracle.recorder import best_of, gaps, log_probabilities
from conformance.tables import table

LENGTHS, QUICK = tuple(range(1, 33)), (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)
# Tokens that are fed in blocks after a context of each of these lengths: short, and past most tiles of a kernel.
FED, CONTEXTS = 64, (16, 512)
REPEATS, QUICK_REPEATS = 9, 3
# How likely the next token of a draft is right where text is copied: what the recommended bound is for.
LIKELY = 0.95
Say = Callable[[str], None]


@dataclass
class Row:
    """Blocks of one length."""

    length: int
    # The largest difference of a log probability, and how many of the likeliest tokens changed.
    noise: float = 0.0
    changed: int = 0
    cost: float = 1.0


def feed(model: Any, context: Sequence[int], tokens: Sequence[int], length: int) -> list[mx.array]:
    """The log probabilities of tokens that are fed in blocks of one length after a context."""
    layers, rows = make_prompt_cache(model), []
    mx.eval(model(mx.array([list(context)]), cache=layers))
    for start in range(0, len(tokens), length):
        logits = model(mx.array([list(tokens[start : start + length])]), cache=layers)[0]
        rows += list(log_probabilities(logits))
        mx.eval(rows[start:])
    return rows


def tokens_of(tokenizer: Any) -> list[int]:
    """Text to feed, as long as is needed."""
    tokens = [token for messages in built_in().values() for token in encode(tokenizer, messages)]
    return (tokens * (1 + (max(CONTEXTS) + FED) // len(tokens)))[: max(CONTEXTS) + FED]


def measure(model: Any, tokens: Sequence[int], lengths: Sequence[int], say: Say) -> list[Row]:
    rows = {length: Row(length) for length in lengths}
    for context in CONTEXTS:
        before, fed = tokens[:context], tokens[context : context + FED]
        single = feed(model, before, fed, 1)
        for length, row in rows.items():
            say(f"a context of {context}, blocks of {length}")
            got = feed(model, before, fed, length)
            row.noise = max([row.noise, *gaps(got, single)])
            row.changed += sum(a != b for a, b in zip(best_of(got), best_of(single), strict=True))
    return list(rows.values())


def costs(model: Any, tokens: Sequence[int], lengths: Sequence[int], repeats: int, n_rows: int = 1) -> dict[int, float]:
    """The median seconds of a block of each length after a short context, in so many rows."""
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([list(tokens[: CONTEXTS[0]])] * n_rows), cache=cache))
    return block_seconds(model, cache, lengths, repeats, n_rows)


def recommend(rows: list[Row]) -> dict[str, Any]:
    """The draft that is worth most where text is copied, the margin of its blocks, and the longest one without it."""

    def worth(row: Row) -> float:
        # The expected tokens of a block whose tokens are each right with the same probability.
        return (1 - LIKELY**row.length) / (1 - LIKELY) / row.cost

    best = max(rows, key=worth)
    # As draft_margin="auto" has it: two logits may be off together, and that twice.
    margin = 4 * max(row.noise for row in rows if row.length <= best.length)
    exact = next((i for i, row in enumerate(rows) if row.noise), len(rows)) - 1
    without = max(rows[exact].length - 1, 0)
    return {"num_draft_tokens": max(best.length - 1, 1), "draft_margin": margin, "without_margin": without}


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, print a table and what it recommends, and return both."""
    tokens = tokens_of(tokenizer)
    lengths = QUICK if args.quick else LENGTHS
    rows = measure(model, tokens, lengths, say)
    say("costs")
    seconds = costs(model, tokens, lengths, QUICK_REPEATS if args.quick else REPEATS)
    for row in rows:
        row.cost = seconds[row.length] / seconds[1]
    found = recommend(rows)
    draft, margin, without = found.values()
    say("")
    cells = []
    for row in rows:
        about = ("differ", f"{row.noise:.1e}") if row.noise else ("identical", "0")
        cells.append([row.length, *about, f"{row.changed} of {2 * FED}", row.cost])
    print(table(["block", "rows", "noise", "other token", "cost"], cells))
    if any(row.noise for row in rows):
        print(f"\nnot identical: up to blocks of {without + 1} the rows are those of single tokens.")
    else:
        print(f"\nidentical: a block of up to {rows[-1].length} tokens gives the bits of single tokens, end to end.")
    print(f"recommended: num_draft_tokens={draft}, draft_margin={margin:.3g}")
    if margin and without:
        print(f"without a margin: num_draft_tokens={without}")
    return {"rows": [asdict(row) for row in rows], "recommended": found, "exit": 0}
