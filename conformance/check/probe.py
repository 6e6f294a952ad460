"""Compare blocks of tokens with single tokens on a model and a device, by length: how far off they are, and their cost.

python -m conformance probe --model conformance/fixture

Nothing is drafted or trimmed before the differences are known: they come from the model's own code and the kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import repeat, takewhile
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from conformance.check.prompts import built_in, encode
from conformance.lab.bench.models import block_seconds
from conformance.oracle.recorder import gap, replay
from conformance.tables import table

LENGTHS, QUICK = tuple(range(1, 33)), (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)
# Tokens that are fed in blocks after a context of each of these lengths: short, and past most tiles of a kernel.
FED, CONTEXTS = 64, (16, 512)
REPEATS, QUICK_REPEATS = 9, 3
Say = Callable[[str], None]


def noises(model: Any, tokens: Sequence[int], lengths: Sequence[int], say: Say) -> dict[int, float]:
    """The largest difference of a log probability from that of single tokens, in blocks of each length."""
    found = dict.fromkeys(lengths, 0.0)
    for context in CONTEXTS:
        text = tokens[:context], tokens[context : context + FED]
        single = replay(model, *text, ()).rows
        for length in lengths:
            say(f"a context of {context}, blocks of {length}")
            found[length] = max(found[length], gap(replay(model, *text, repeat(length)).rows, single))
    return found


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, print a table and what follows from it, and return the rows."""
    tokens = [token for messages in built_in().values() for token in encode(tokenizer, messages)]
    lengths, repeats = (QUICK, QUICK_REPEATS) if args.quick else (LENGTHS, REPEATS)
    noise = noises(model, tokens, lengths, say)
    say("costs")
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([tokens[: CONTEXTS[0]]]), cache=cache))
    seconds = block_seconds(model, cache, lengths, repeats)
    rows = [{"length": n, "noise": noise[n], "cost": seconds[n] / seconds[1]} for n in lengths]
    exact = max((row["length"] for row in takewhile(lambda row: not row["noise"], rows)), default=1)
    say("")
    print(table(["block", "noise", "cost"], ([row["length"], f"{row['noise']:.2g}", row["cost"]] for row in rows)))
    print(f"\nidentical: a block of up to {exact} tokens gives the bits of single tokens, end to end.")
    # As draft_margin="auto" has it: two logits may be off together, and that twice.
    print(f"draft_margin={4 * max(noise.values()):.3g} is four times the most noise.")
    return {"rows": rows, "exit": 0}
