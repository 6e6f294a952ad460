"""What a snapshot, a proposal, a trim by row cost, and a draft model beside the release: tox run -e micro

The suite runs each test once, without timing. No test asserts a time.
"""

from __future__ import annotations

import importlib
import random
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import NgramModStrategy, NgramModTable
from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from conformance.lab.simulate.run import makers

VOCAB = 50_000
LENGTHS = (2_000, 32_000, 128_000)
MAKERS = makers() | {"ngram-mod": lambda: NgramModStrategy(NgramModTable(size=2**22, vocab_size=VOCAB + 300))}


@cache
def text(n: int) -> list[int]:
    """A text of n tokens: half is new, half repeats earlier passages with one change in each."""
    rng = random.Random(n)
    tokens: list[int] = []
    while len(tokens) < n:
        start = rng.randrange(len(tokens) + 1)
        tokens += [*tokens[start : start + 200], rng.randrange(VOCAB)]
        tokens += [rng.randrange(VOCAB) for _ in range(200)]
    return tokens[:n]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("match", [True, False], ids=["match", "miss"])
@pytest.mark.parametrize("name", MAKERS)
def test_propose(benchmark: Any, name: str, match: bool, n: int) -> None:
    """The end of the sequence matches a place in its middle, or no place at all."""
    benchmark.group = f"propose, {'match' if match else 'miss'}, {n} tokens"
    n = n if benchmark.enabled else n // 16
    strategy, tokens = MAKERS[name](), text(n)
    strategy.observe(tokens)
    # So many that an edit is not resumed behind them.
    strategy.observe(tokens[n // 2 : n // 2 + 12] if match else range(VOCAB, VOCAB + 300))
    draft = benchmark(strategy.propose, 8)
    assert (len(draft) > 0) == match


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", MAKERS)
def test_observe_a_prompt(benchmark: Any, name: str, n: int) -> None:
    """Each round indexes the whole prompt, so divide by its length. Freeing the previous index is not timed."""
    benchmark.group = f"observe a prompt, {n} tokens"
    tokens = text(n if benchmark.enabled else n // 16)
    benchmark.pedantic(
        lambda strategy: strategy.observe(tokens), setup=lambda: ((MAKERS[name](),), {}), rounds=15, warmup_rounds=1
    )


ROWS = [0] * 4
CACHES = {KVCache: (), QuantizedKVCache: (), RotatingKVCache: (512,), BatchKVCache: (ROWS,), ArraysCache: (2,)}


@pytest.mark.parametrize("tokens", [512, 32768])
@pytest.mark.parametrize("kind", CACHES)
def test_a_snapshot_and_back(benchmark: Any, kind: Any, tokens: int) -> None:
    cache, rows = kind(*CACHES[kind]), mx.zeros((4 if kind is BatchKVCache else 1, 1, tokens, 64), dtype=mx.float16)
    if kind is ArraysCache:
        cache[0], cache[1] = rows[:, 0, :3], rows[:, 0, :64]
    else:
        cache.update_and_fetch(rows, rows)
    mx.eval(cache.state)
    benchmark(lambda: cache.restore(cache.snap()))


# What is dropped of each row, and whether the rows are moved to end in the same column.
WAYS = {
    "all rows alike": ([4, 4, 4, 4], False),
    "each row where it ends": ([4, 1, 2, 3], False),
    "moved to the same column": ([4, 1, 2, 3], True),
}


@pytest.mark.parametrize("tokens", [2048, 32768])
@pytest.mark.parametrize("way", WAYS)
def test_a_block_and_a_trim_by_row(benchmark: Any, way: str, tokens: int) -> None:
    dropped, moved = WAYS[way]
    cache, rows = BatchKVCache(ROWS), mx.zeros((4, 2, 4, 128), dtype=mx.float16)
    whole = mx.zeros((4, 2, tokens, 128), dtype=mx.float16)
    cache.update_and_fetch(whole, whole)

    def step() -> None:
        mx.eval(cache.update_and_fetch(rows, rows))
        cache.trim(dropped)
        if moved:
            cache._align()
        mx.eval(cache.keys, cache.values)

    benchmark(step)


PROMPT = [(7 * i + 3) % 1000 for i in range(64)]


def model_of(layers: int, width: int, seed: int) -> llama.Model:
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs("llama", width, layers, 2 * width, 4, 1e-5, 1024))
    mx.eval(model.parameters())
    return model


@pytest.mark.patched_source
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("tree", ["as released", "with the series"])
@pytest.mark.parametrize("n_draft", [2, 8])
@pytest.mark.parametrize("agrees", [True, False], ids=["agrees", "disagrees"])
def test_decode_with_a_draft_model(benchmark: Any, released: str, agrees: bool, n_draft: int, tree: str) -> None:
    """The draft model is the model, or another one that is never right."""
    n = 96 if benchmark.enabled else 16
    benchmark.group = f"{n} tokens, {n_draft} draft tokens, a draft model that {'agrees' if agrees else 'disagrees'}"
    model = model_of(4, 256, 0)
    drafter = model if agrees else model_of(1, 64, 1)
    package = released if tree == "as released" else "mlx_lm"
    step = importlib.import_module(f"{package}.generate").speculative_generate_step

    def decode() -> list[int]:
        return [int(t) for t, *_ in step(mx.array(PROMPT), model, drafter, num_draft_tokens=n_draft, max_tokens=n)]

    plain = [int(token) for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=n)]
    assert benchmark.pedantic(decode, rounds=9 if benchmark.enabled else 1, warmup_rounds=1) == plain
