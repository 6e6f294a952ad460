"""Measure how costs grow with the context: the drafters up to 128k tokens, and with the model blocks and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.draft import NgramModStrategy, NgramModTable

from conformance.bench import limit
from conformance.bench.cells import Row
from conformance.bench.models import Subject
from conformance.bench.plan import Plan, Progress
from conformance.testing.drafts.backward_scan import INDEXES, VOCAB, Scan, bytes_a_token, text

DRAFT = 8


def makers() -> dict[str, Any]:
    memory = {"ngram-mod": lambda: NgramModStrategy(NgramModTable(vocab_size=VOCAB))}
    return INDEXES | memory | {"backward scan": Scan}


def microseconds(act: Any, seconds: float = 0.05) -> float:
    """The time of one call: the least of several rounds. Each round is long enough to be timed."""
    rounds: list[float] = []
    calls = 1
    while len(rounds) < 5:
        start = time.perf_counter()
        for _ in range(calls):
            act()
        took = time.perf_counter() - start
        if took < seconds / 10 and calls < 10_000:
            calls *= 4
        else:
            rounds.append(took / calls)
    return 1e6 * min(rounds)


def drafters(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Time the drafters without a model: to learn a token of a prompt, and to propose with and without a match."""
    for context in plan.drafter_contexts:
        tokens = text(context)
        for name, make in makers().items():
            rounds = []
            for _ in range(plan.repeats):
                start = time.perf_counter()
                strategy = taken_in(make(), tokens)
                rounds.append(time.perf_counter() - start)
            index = 1e6 * min(rounds) / context
            taken_in(strategy, tokens[context // 2 : context // 2 + 24])
            match = microseconds(lambda s=strategy: s.propose(DRAFT))
            taken_in(strategy, [VOCAB - 1, VOCAB - 2, VOCAB - 1])
            miss = microseconds(lambda s=strategy: s.propose(DRAFT))
            row = {"drafter": name, "context": context, "index_us": index, "match_us": match, "miss_us": miss}
            held = bytes_a_token(make, tokens) * context if name in INDEXES else None
            yield row | {"bytes": NgramModTable().size * 4 if name == "ngram-mod" else held}
        progress(f"scale: drafters at {context} tokens")


def taken_in(strategy: Any, tokens: Sequence[int]) -> Any:
    for start in range(0, len(tokens), 1024):
        strategy.observe(tokens[start : start + 1024])
    return strategy


def blocks(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """Time tokens and longer blocks with the model, and measure the size of the cache."""
    vocab = subject.tokenizer.vocab_size
    for context in plan.model_contexts:
        cache, _ = subject.prefilled([i * 7 % vocab for i in range(context)])
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        samples = limit.block_samples(subject.model, cache, plan.lengths, plan.repeats)
        block_bytes = mx.get_peak_memory() - before
        costs = limit.relative(samples)
        token = sorted(samples[1])[len(samples[1]) // 2]
        progress(f"scale: {subject.name} {subject.weights} at {context} tokens, {1e3 * token:.1f} ms a token")
        yield subject.labels() | {
            "context": context,
            "token_ms": 1e3 * token,
            "plain_step": round(limit.plain_step(subject.model, cache, plan.repeats), 3),
            "costs": {str(length): round(value, 3) for length, value in costs.items()},
            "kv_bytes": sum(c.nbytes for c in cache),
            "block_bytes": block_bytes,
        }
