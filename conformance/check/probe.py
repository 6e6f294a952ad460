"""Compare blocks of tokens with single tokens on a model and a device: bits, noise and cost, by length.

python -m conformance probe --model conformance/fixture

Nothing is drafted and nothing is trimmed here: the differences come from the model's own code and the kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from conformance.check.prompts import built_in, encode
from conformance.testing.decode.recorder import gaps, log_probabilities
from conformance.testing.models.layers import tapped
from conformance.testing.tables import line, table

LENGTHS, QUICK = tuple(range(1, 33)), (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)
# Tokens that are fed in blocks after a context of each of these lengths: short, and past most tiles of a kernel.
FED, CONTEXTS = 64, (16, 512)
REPEATS, QUICK_REPEATS = 9, 3
# How likely the next token of a draft is right where text is copied: what the recommended bound is for.
LIKELY = 0.95
HEAD = "head"
Say = Callable[[str], None]


@dataclass
class Row:
    """Blocks of one length."""

    length: int
    # The largest difference of a log probability, and how many of the likeliest tokens changed.
    noise: float = 0.0
    changed: int = 0
    cost: float = 1.0
    # The largest difference of what each layer computes from the same inputs, as a share of its largest value.
    layers: dict[str, float] = field(default_factory=dict)

    @property
    def identical(self) -> bool:
        return self.noise == 0 and not any(self.layers.values())


class Recorder:
    """Keeps what each call of a layer gave to single tokens; then gives blocks the same, and notes what they differ by.

    So each layer of a block has the inputs that it has with single tokens, and its difference is its own.
    """

    def __init__(self) -> None:
        # For each call of a layer in a forward pass, its outputs token by token.
        self.outputs: list[list[Any]] = []
        self.call, self.start = 0, 0
        self.found: dict[str, float] | None = None

    def next_pass(self, start: int) -> None:
        self.call, self.start = 0, start

    def tap(self, layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = call(layer, *args, **kwargs)
        several = isinstance(made, tuple)
        mine = made[0] if several else made
        number, self.call = self.call, self.call + 1
        if self.found is None:
            if number == len(self.outputs):
                self.outputs.append([])
            self.outputs[number].append(mine)
            return made
        right = mx.concatenate(self.outputs[number][self.start : self.start + mine.shape[1]], axis=1)
        off = share(mine, right)
        name = f"layer {number}"
        self.found[name] = max(self.found.get(name, 0.0), off)
        return (right, *made[1:]) if several else right


def share(a: mx.array, b: mx.array) -> float:
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return float((mx.abs(a - b).max() / mx.maximum(mx.abs(b).max(), 1e-30)).item())


def feed(
    model: Any, context: Sequence[int], tokens: Sequence[int], length: int, recorder: Recorder | None
) -> list[Any]:
    """The log probabilities of tokens that are fed in blocks of one length after a context."""
    layers, rows = make_prompt_cache(model), []
    mx.eval(model(mx.array([list(context)]), cache=layers))
    with nullcontext() if recorder is None else tapped(model, recorder.tap):
        for start in range(0, len(tokens), length):
            if recorder is not None:
                recorder.next_pass(start)
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
        single = feed(model, before, fed, 1, None)
        recorder: Recorder | None = Recorder()
        try:
            feed(model, before, fed, 1, recorder)
        except Exception:
            # Such a model is compared end to end only.
            recorder = None
        for length in lengths:
            say(f"a context of {context}, blocks of {length}")
            row = rows[length]
            got = feed(model, before, fed, length, None)
            row.noise = max([row.noise, *gaps(got, single)])
            row.changed += sum(
                int(mx.argmax(a).item() != mx.argmax(b).item()) for a, b in zip(got, single, strict=True)
            )
            if recorder is not None:
                row.layers = by_layer(model, before, fed, length, recorder, single, row.layers)
    return list(rows.values())


def by_layer(
    model: Any,
    context: Sequence[int],
    fed: Sequence[int],
    length: int,
    recorder: Recorder,
    single: Sequence[mx.array],
    known: dict[str, float],
) -> dict[str, float]:
    """How far each layer is off, given what single tokens give it; and what comes after the layers."""
    recorder.found = dict(known)
    try:
        rows = feed(model, context, fed, length, recorder)
    except Exception:
        return {}
    # A layer that is not called, or whose output goes nowhere, says nothing.
    if not recorder.outputs:
        return {}
    found = recorder.found
    found[HEAD] = max(known.get(HEAD, 0.0), *gaps(rows, single))
    return found


def costs(model: Any, tokens: Sequence[int], rows: list[Row], repeats: int, say: Say) -> None:
    """The median time of a block, in medians of single tokens; lengths up and down, so that the context evens out."""
    seconds: dict[int, list[float]] = {row.length: [] for row in rows}
    for number in range(repeats + 1):
        say(f"costs, round {number} of {repeats}")
        layers = make_prompt_cache(model)
        mx.eval(model(mx.array([list(tokens[: CONTEXTS[0]])]), cache=layers))
        for row in rows if number % 2 else rows[::-1]:
            block = mx.array([list(tokens[: row.length])])
            tic = time.perf_counter()
            mx.eval(model(block, cache=layers))
            seconds[row.length].append(time.perf_counter() - tic)
    # The first round compiles.
    medians = {length: statistics.median(found[1:]) for length, found in seconds.items()}
    for row in rows:
        row.cost = medians[row.length] / medians[1]


@dataclass
class Recommended:
    num_draft_tokens: int
    draft_margin: float
    # The longest draft that needs no margin.
    without_margin: int


def recommend(rows: list[Row]) -> Recommended:
    """The draft that is worth most where text is copied, and the margin that its blocks need."""

    def worth(row: Row) -> float:
        # The expected tokens of a block whose tokens are each right with the same probability.
        return (1 - LIKELY**row.length) / (1 - LIKELY) / row.cost

    best = max(rows, key=worth)
    # As draft_margin="auto" has it: two logits may be off together, and that twice.
    noise = max(row.noise for row in rows if row.length <= best.length)
    exact = next((i for i, row in enumerate(rows) if row.noise), len(rows)) - 1
    return Recommended(max(best.length - 1, 1), 4 * noise, max(rows[exact].length - 1, 0))


def lines_of(rows: list[Row], found: Recommended) -> Iterator[str]:
    yield table(["block", "rows", "noise", "other token", "layers that differ", "cost"])
    for row in rows:
        rows_are = "identical" if row.noise == 0 else "differ"
        differ = "not known" if not row.layers else worst(row.layers)
        noise = f"{row.noise:.1e}" if row.noise else "0"
        yield line([row.length, rows_are, noise, f"{row.changed} of {2 * FED}", differ, row.cost])
    yield ""
    if not any(row.noise for row in rows):
        yield f"identical: a block of up to {rows[-1].length} tokens gives the bits of single tokens, end to end."
    else:
        yield f"not identical: up to blocks of {found.without_margin + 1} the rows are those of single tokens."
    yield f"recommended: num_draft_tokens={found.num_draft_tokens}, draft_margin={found.draft_margin:.3g}"
    if found.draft_margin and found.without_margin:
        yield f"without a margin: num_draft_tokens={found.without_margin}"


def worst(layers: dict[str, float]) -> str:
    off = {name: value for name, value in layers.items() if value}
    if not off:
        return "none"
    name = max(off, key=lambda name: off[name])
    return f"{len(off)} of {len(layers)}, most {name} by {off[name]:.1e}"


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, print a table and what it recommends, and return both."""
    tokens = tokens_of(tokenizer)
    rows = measure(model, tokens, QUICK if args.quick else LENGTHS, say)
    costs(model, tokens, rows, QUICK_REPEATS if args.quick else REPEATS, say)
    found = recommend(rows)
    say("")
    print("\n".join(lines_of(rows, found)))
    return {"rows": [asdict(row) for row in rows], "recommended": asdict(found), "exit": 0}
