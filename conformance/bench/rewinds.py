"""Measure what an exact rollback gains on hybrid, recurrent and sliding-window models.

The weights are random, so the drafts are scripted: each token is right with a given frequency. The other ways restore a
snapshot after a rejection and feed the accepted tokens again, with the next block or in a separate pass.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance.bench.cells import Row, TimedRun, parity
from conformance.bench.models import DTYPES, fill
from conformance.bench.plan import Plan, Progress
from conformance.testing.models.architectures import CONFIGS, build, make_cache

# The tiny models of the suite with wide layers, so that a forward pass costs as much as with millions of parameters.
WIDE: dict[str, dict[str, Any]] = {
    "gemma3_text": {"hidden_size": 256, "sliding_window": 64},
    "qwen3_5": {"hidden_size": 256},
    "falcon_h1": {"hidden_size": 256},
}
KINDS = {"gemma3_text": "sliding window", "qwen3_5": "linear attention", "falcon_h1": "state space"}
NEURONS = 4096
PROMPT, DRAFT, TOKENS = 100, 4, 40
REWIND, AGAIN, TWICE = "rewind", "restore, feed again with the next block", "restore, feed again at once"


def model_of(name: str, quick: bool) -> Any:
    config = CONFIGS[name] | (WIDE[name] | {"intermediate_size": NEURONS} if not quick else {})
    if "text_config" in config:
        config["text_config"] = CONFIGS[name]["text_config"] | {k: v for k, v in config.items() if k != "text_config"}
        config["text_config"]["model_type"] = CONFIGS[name]["text_config"]["model_type"]
    with patch.dict(CONFIGS, {name: config}):
        model = build(name)
    # For each token of a block fp32 weights are read again. bf16 weights are read once for the block.
    model.set_dtype(DTYPES["bf16"])
    mx.eval(model.parameters())
    return model


class AtRate:
    """Drafts the known text. Each token is right with a given frequency. Every run has the same wrong tokens."""

    def __init__(self, text: Sequence[int], rate: float, vocab: int) -> None:
        rng = random.Random(f"{rate}")
        self.text = [token if rng.random() < rate else (token + 1) % vocab for token in text]
        self.place = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.place += len(tokens)

    def propose(self, n_max: int) -> Sequence[int]:
        return self.text[self.place : self.place + n_max]

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


def replay_at_once(self: BlockVerifier, n_accepted: int) -> None:
    """Restore and feed the accepted tokens again at once: a second forward pass."""
    ACCEPT(self, n_accepted)
    self._feed_replay()


ACCEPT = BlockVerifier.accept


@dataclass
class Subject:
    model: Any
    tokens: int
    vocab: int = 64

    def __post_init__(self) -> None:
        rng = random.Random(0)
        self.prompt = [rng.randrange(self.vocab) for _ in range(PROMPT)]

    def run(self, rate: float | None, text: Sequence[int] = ()) -> TimedRun:
        cache = make_cache(self.model)
        fill(self.model, self.prompt[:-1], cache)
        options = {"max_tokens": self.tokens, "prompt_cache": cache}
        last = mx.array(self.prompt[-1:])
        if rate is None:
            steps = generate_step(last, self.model, **options)
        else:
            options |= {"num_draft_tokens": DRAFT, "disable_adaptive_gate": True}
            # The drafter observes the last token of the prompt, and counts from there.
            drafter = AtRate([*last.tolist(), *text], rate, self.vocab)
            steps = speculative_generate_step(last, self.model, draft_strategy=drafter, **options)
        start = end = perf_counter()
        tokens: list[int] = []
        with closing(steps):
            for token, *_ in steps:
                end = perf_counter()
                tokens.append(token)
        return TimedRun(tokens, end - start)


def ways() -> dict[str, list[tuple[Any, str, Any]]]:
    """The replacements that make each way of rolling back a draft."""
    never = (BlockVerifier, "_can_trim", lambda *_: False)
    return {REWIND: [], AGAIN: [never], TWICE: [never, (BlockVerifier, "accept", replay_at_once)]}


def measure(plan: Plan, progress: Progress) -> Iterator[Row]:
    for name in list(WIDE)[: 1 if plan.quick else None]:
        subject = Subject(model_of(name, plan.quick), min(plan.tokens, TOKENS))
        kv = "+".join(dict.fromkeys(type(c).__name__ for c in make_cache(subject.model)))
        labels = {"model": name, "weights": "bf16", "kind": KINDS[name], "kv": kv, "batch": 1}
        text = subject.run(None).tokens
        for rate in plan.rates:
            rows = list(compared(subject, rate, text, plan.repeats))
            shown = ", ".join("no parity" if row["speed"] is None else f"{row['speed']:.2f}x" for row in rows)
            progress(f"rewinds: {name}, acceptance {rate}: {shown}")
            yield from (labels | row for row in rows)


def compared(subject: Subject, rate: float, text: Sequence[int], repeats: int) -> Iterator[Row]:
    """Compare all ways to roll back a draft with plain decoding."""
    names = list(ways())

    def run(way: int | None) -> TimedRun:
        with ExitStack() as stack:
            for replaced in [] if way is None else ways()[names[way]]:
                stack.enter_context(patch.object(*replaced))
            return subject.run(None if way is None else rate, text)

    order = turns(len(names), repeats)
    runs = [run(way) for way in order]
    plain = [run for run, i in zip(runs, order, strict=True) if i is None]
    for i, name in enumerate(names):
        drafted, ratios = beside_plain(runs, order, i)
        yield {"rate": rate, "way": name, "plain_tps": statistics.median(run.tps for run in plain)} | speeds(
            ratios, parity(plain, drafted)
        )


def turns(n_ways: int, repeats: int) -> list[int | None]:
    """The order of the runs. None is a plain run; a number is the index of a way. Plain runs come first and last."""
    once: list[int | None] = []
    for i in range(n_ways):
        once += [None, i] if i % 2 == 0 else [i]
    return once * repeats + [None]


def beside_plain(runs: Sequence[TimedRun], order: Sequence[int | None], way: int) -> tuple[list[TimedRun], list[float]]:
    """The runs of a way, and for each run the time of the plain runs beside it, in multiples of its own time."""
    drafted, ratios = [], []
    for at, i in enumerate(order):
        if i == way:
            plain = [runs[j].seconds for j in (at - 1, at + 1) if order[j] is None]
            drafted.append(runs[at])
            ratios.append(statistics.mean(plain) / runs[at].seconds)
    return drafted, ratios


def speeds(ratios: Sequence[float], equal: bool) -> Row:
    """Summarize the ratios. Without parity there is no speed."""
    if not equal:
        return {"parity": False, "speed": None, "low": None, "high": None}
    return {"parity": True, "speed": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
