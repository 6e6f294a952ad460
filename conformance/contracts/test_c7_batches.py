"""Drafts slow down no batch and no row of it, and copies gain: the batch of the package, on recorded streams.

Nothing is timed: the costs of blocks come from a table.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import pytest
from mlx_lm.draft import HeadDraftStrategy, LearnedCosts, SuffixStrategy, costs, device_costs

from conformance.drafters import Changing, Scripted, Wrong
from conformance.lab.simulate import run
from conformance.lab.simulate.batches import COST_OF_HEAD, KINDS, Batch, decode, requests
from conformance.lab.simulate.run import Make
from conformance.lab.streams import Request
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL

# The device, how many rows, and the least speed where texts are copied. Without drafts it is 1.
BATCHES = (("metal", 2, 1.2), ("cuda", 4, 2.0))
SLOWEST = 0.98
# The most that drafts may cost a row beyond their gain: in passes, and for each token.
CREDIT, CREDIT_OF_ROW = 1.0, 0.01


def check_rows(batch: Batch) -> None:
    for uid in batch.ended:
        spent, n = batch.of_row[uid], len(batch.said[uid])
        most = (1 + CREDIT_OF_ROW) * n + CREDIT
        if spent > most + 0.01:
            broken(f"beside others a row of {n} tokens takes as long as {spent:.2f} passes, not {most:.2f} at most")


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_is_slower(kind: str) -> None:
    for device, size, gain in (*BATCHES, ("metal", 16, SLOWEST)) if FULL or kind == "copying" else BATCHES:
        batch = decode(requests(kind, seeds=[100]), size, device_costs(device))
        least = gain if kind == "copying" else SLOWEST
        assert batch.speed >= least, f"{size} rows on {device} are {batch.speed:.3f} times as fast, not {least}"
        check_rows(batch)


@pytest.mark.parametrize("make", [Wrong, Changing])
def test_strategies_that_are_wrong_cost_the_credit(make: Make) -> None:
    for device, size, _ in BATCHES:
        asked = [(Request([0], [i % 50 for i in range(200)]), True), *requests("beside", seeds=[100])[:3]]
        check_rows(decode(asked, size, device_costs(device), make))


def head(lookup: Wrong | None = None) -> HeadDraftStrategy:
    strategy = HeadDraftStrategy(lookup)
    strategy.cost = COST_OF_HEAD
    return strategy


@pytest.mark.parametrize("cost", [0.5, 0.9])
def test_a_head_beside_a_wrong_lookup(cost: float) -> None:
    """Alone: what both cost is within one credit."""
    strategy, n = HeadDraftStrategy(Wrong()), 20
    strategy.cost, strategy.draft = cost, lambda token, n: Wrong().propose(n)
    result, drafts = run.decode(strategy, Request([0], list(range(n))), run.M4)
    most = 1.005 * n + CREDIT
    assert any(drafts)
    assert result.spent <= most, f"{n} tokens cost {result.spent:.2f} passes, not {most:.2f} at most"


@pytest.mark.parametrize("lookup", [None, Wrong(7)], ids=["alone", "beside a lookup"])
def test_all_rows_wait_for_a_head(lookup: Wrong | None) -> None:
    """Two are drafted by it. The other has no drafts, and bears no more of them than of the blocks."""
    asked = [(Request([0], [7] * 60), drafted) for drafted in (True, True, False)]
    for device, size in (("metal", 2), ("cuda", 3)):
        check_rows(decode(asked[-size:], size, device_costs(device), lambda: head(lookup)))


@pytest.mark.parametrize("factor", [4, 0.25])
def test_costs_of_another_time_slow_no_batch_down(factor: float) -> None:
    """The machine was ``factor`` times slower when they were learned, and two rows have no pass of one token since."""
    truth = device_costs("metal")
    learned, (asked, *_) = LearnedCosts(truth), requests("prose", seeds=[100])
    for n in 9 * (1, 2, 4, 8, 16):
        learned.learn(n, factor * truth(n), ahead=n == 1)
    batch = Batch([asked] * 4, 2, truth, SuffixStrategy, learned)
    with patch.object(costs, "time", SimpleNamespace(perf_counter=lambda: batch.spent)):
        while len(batch.ended) < 2:
            batch.step()
    assert batch.speed >= SLOWEST, f"two rows are {batch.speed:.3f} times as fast as without drafts, not {SLOWEST}"


def test_a_batch_runs_ahead_where_nothing_is_drafted() -> None:
    """As plain batching does: a pass begins before anybody knows the token that it feeds."""
    strategy, n = Scripted([]), 40
    batch, known = Batch([(Request([0], list(range(n))), True)], 1, device_costs("cpu"), lambda: strategy), []
    while not batch.ended:
        before = batch.spent
        batch.step()
        if batch.spent > before:
            known.append(len(strategy.seen))
    # The prompt, and all but the token of each pass.
    late = sum(known[i] > 1 + i for i in range(3, n - 1))
    assert late == 0, f"{late} of {n} passes begin after the token that they feed is read"
