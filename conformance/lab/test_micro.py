"""What a snapshot, a proposal, a trim by row cost, and a draft model beside the release: tox run -e micro

The suite runs each test once, without timing. No test asserts a time.
"""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import (
    EditStrategy,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    SuffixStrategy,
)
from mlx_lm.models import llama
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from conformance.series.patches import commits, unpack
from conformance.subjects.families import GENERATE

VOCAB = 50_000
LENGTHS = (2_000, 32_000, 128_000)
INDEXES: dict[str, Callable[[], Any]] = {
    "ngram-simple": NgramSimpleStrategy,
    "suffix": SuffixStrategy,
    "edit": EditStrategy,
    "ngram-mod": lambda: NgramModStrategy(NgramModTable(size=2**22, vocab_size=VOCAB + 300)),
}


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
@pytest.mark.parametrize("name", INDEXES)
def test_propose(benchmark: Any, name: str, match: bool, n: int) -> None:
    """The end of the sequence matches a place in its middle, or no place at all."""
    benchmark.group = f"propose, {'match' if match else 'miss'}, {n} tokens"
    strategy, tokens = INDEXES[name](), text(n)
    strategy.observe(tokens)
    # So many that an edit is not resumed behind them.
    strategy.observe(tokens[n // 2 : n // 2 + 12] if match else range(VOCAB, VOCAB + 300))
    draft = benchmark(strategy.propose, 8)
    assert (len(draft) > 0) == match


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", INDEXES)
def test_observe_a_prompt(benchmark: Any, name: str, n: int) -> None:
    """Each round indexes the whole prompt, so divide by its length. Freeing the previous index is not timed."""
    benchmark.group = f"observe a prompt, {n} tokens"
    tokens = text(n)
    benchmark.pedantic(
        lambda strategy: strategy.observe(tokens), setup=lambda: ((INDEXES[name](),), {}), rounds=15, warmup_rounds=1
    )


def batch_of_four() -> BatchKVCache:
    return BatchKVCache([0] * 4)


CACHES: dict[str, Callable[[], Any]] = {
    "KVCache": KVCache,
    "QuantizedKVCache": QuantizedKVCache,
    "RotatingKVCache": lambda: RotatingKVCache(512),
    "BatchKVCache": batch_of_four,
    "ArraysCache": lambda: ArraysCache(2),
}


@pytest.mark.parametrize("tokens", [512, 32768])
@pytest.mark.parametrize("name", CACHES)
def test_a_snapshot_and_back(benchmark: Any, name: str, tokens: int) -> None:
    cache, rows = CACHES[name](), mx.zeros((4 if name == "BatchKVCache" else 1, 1, tokens, 64), dtype=mx.float16)
    if isinstance(cache, ArraysCache):
        cache[0], cache[1] = rows[:, 0, :3], rows[:, 0, :64]
    else:
        cache.update_and_fetch(rows, rows)
    mx.eval(cache.state)
    benchmark(lambda: cache.restore(cache.snap()))


WAYS: dict[str, tuple[list[int], Callable[[Any], None]]] = {
    "all rows alike": ([4, 4, 4, 4], lambda cache: None),
    "each row where it ends": ([4, 1, 2, 3], lambda cache: None),
    "moved to the same column": ([4, 1, 2, 3], lambda cache: cache._align()),
}


@pytest.mark.parametrize("tokens", [2048, 32768])
@pytest.mark.parametrize("way", WAYS)
def test_a_block_and_a_trim_by_row(benchmark: Any, way: str, tokens: int) -> None:
    dropped, move = WAYS[way]
    cache, rows = batch_of_four(), mx.zeros((4, 2, 4, 128), dtype=mx.float16)
    whole = mx.zeros((4, 2, tokens, 128), dtype=mx.float16)
    cache.update_and_fetch(whole, whole)

    def step() -> None:
        mx.eval(cache.update_and_fetch(rows, rows))
        cache.trim(dropped)
        move(cache)
        mx.eval(cache.keys, cache.values)

    benchmark(step)


PROMPT = [(7 * i + 3) % 1000 for i in range(64)]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module mlx_lm.generate of the release without the series, beside the installed one."""
    folder = tmp_path_factory.mktemp("released")
    shutil.move(unpack(commits()[0], folder / "tree") / "mlx_lm", folder / "mlx_lm_as_released")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("mlx_lm_as_released.generate")
    for name in [name for name in sys.modules if name.startswith("mlx_lm_as_released")]:
        del sys.modules[name]


def model_of(layers: int, width: int, seed: int) -> llama.Model:
    mx.random.seed(seed)
    args = llama.ModelArgs("llama", width, layers, 2 * width, 4, 1e-5, 1024)
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


@pytest.mark.patched_source
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("tree", ["as released", "with the series"])
@pytest.mark.parametrize("n_draft", [2, 8])
@pytest.mark.parametrize("agrees", [True, False], ids=["agrees", "disagrees"])
def test_decode_with_a_draft_model(benchmark: Any, released: Any, agrees: bool, n_draft: int, tree: str) -> None:
    """The draft model is the model, or another one that is never right."""
    n = 96 if benchmark.enabled else 16
    benchmark.group = f"{n} tokens, {n_draft} draft tokens, a draft model that {'agrees' if agrees else 'disagrees'}"
    model = model_of(4, 256, 0)
    drafter = model if agrees else model_of(1, 64, 1)
    step: Callable[..., Any] = (released if tree == "as released" else GENERATE).speculative_generate_step

    def decode() -> list[int]:
        steps = step(mx.array(PROMPT), model, drafter, num_draft_tokens=n_draft, max_tokens=n)
        return [int(token) for token, *_ in steps]

    plain = [int(token) for token, _ in GENERATE.generate_step(mx.array(PROMPT), model, max_tokens=n)]
    assert benchmark.pedantic(decode, rounds=9 if benchmark.enabled else 1, warmup_rounds=1) == plain
