"""The cost of looking up drafts, compared with a plain backward scan: tox run -e micro

The suite runs each test once, without timing. No test asserts a time. ``--benchmark-json=FILE`` also records the memory
of an index, as ``bytes_a_token``.
"""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.draft import NgramModStrategy, NgramModTable
from mlx_lm.draft.ngram_mod import DEFAULT_TABLE_SIZE

from conformance.lab.micro.backward_scan import INDEXES, VOCAB, Scan, bytes_a_token, text

LENGTHS = (2_000, 32_000, 128_000)
TABLES = (DEFAULT_TABLE_SIZE, 2**22)
MAKERS = {"scan": Scan} | INDEXES


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("match", [True, False], ids=["match", "miss"])
@pytest.mark.parametrize("name", MAKERS)
def test_propose(benchmark: Any, name: str, match: bool, n: int) -> None:
    """The end of the sequence matches a place in its middle, or no place at all."""
    benchmark.group = f"propose, {'match' if match else 'miss'}, {n} tokens"
    strategy, tokens = MAKERS[name](), text(n)
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
    if benchmark.enabled:
        benchmark.extra_info["bytes_a_token"] = bytes_a_token(INDEXES[name], tokens)
    benchmark.pedantic(
        lambda strategy: strategy.observe(tokens), setup=lambda: ((INDEXES[name](),), {}), rounds=15, warmup_rounds=1
    )


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", INDEXES)
def test_a_cycle(benchmark: Any, name: str, n: int) -> None:
    """A proposal, its acceptance and one token, at the end of a prompt."""
    benchmark.group = f"propose, accept, observe, {n} tokens"
    strategy, tokens = INDEXES[name](), text(n)
    strategy.observe(tokens)
    at = iter(range(10**9))

    def cycle() -> None:
        draft = strategy.propose(8)
        strategy.accept(0, len(draft))
        strategy.observe([tokens[next(at) % n]])

    benchmark(cycle)


@pytest.mark.parametrize("n_draft", [64, 0])
@pytest.mark.parametrize("size", TABLES)
def test_ngram_mod_proposes(benchmark: Any, size: int, n_draft: int) -> None:
    """The end of the sequence is in the table, or not."""
    benchmark.group = f"ngram-mod, {n_draft} drafted tokens"
    strategy = NgramModStrategy(NgramModTable(size=size, vocab_size=VOCAB))
    tokens = text(2000)[:1000]
    strategy.observe([*tokens, *tokens[600:620]] if n_draft else list(range(64)))
    assert len(benchmark(strategy.propose, 64)) == n_draft


@pytest.mark.parametrize("size", TABLES)
def test_ngram_mod_fills_a_table(benchmark: Any, size: int) -> None:
    benchmark.group = "ngram-mod, 1000 tokens into a new table"
    tokens = [i * 7919 % VOCAB for i in range(1000)]
    benchmark(lambda: NgramModStrategy(NgramModTable(size=size, vocab_size=VOCAB)).observe(tokens))
