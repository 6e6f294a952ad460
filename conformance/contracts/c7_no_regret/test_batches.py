"""Drafts slow down no batch and no row of it, and copies gain: the batch of the package, on recorded streams.

Nothing is timed: the costs of blocks come from a table.
"""

from __future__ import annotations

from functools import cache

import pytest
from mlx_lm.draft import device_costs

from conformance.drafters import Changing, Scripted, Wrong
from conformance.lab.simulate.batches import DEVICES, KINDS, Asked, Batch, decode, requests
from conformance.lab.simulate.run import Make
from conformance.lab.streams import Request
from conformance.oracle.findings import broken

SIZES = {"metal": (2, 16), "cuda": (4,)}
# The least speed, without drafts 1, and where copies gain.
SLOWEST, LEAST = 0.98, {("copying", "metal", 2): 1.2, ("copying", "cuda", 4): 2.0}
# The most that drafts may cost a row beyond their gain: in passes, and for each token.
CREDIT, CREDIT_OF_ROW = 1.0, 0.01


@cache
def recorded(kind: str) -> tuple[Asked, ...]:
    return tuple(requests(kind, seeds=range(100, 101)))


def check_rows(batch: Batch, size: int) -> None:
    for uid in batch.ended:
        spent, n = batch.of_row[uid], len(batch.said[uid])
        most = (1 + CREDIT_OF_ROW) * n + CREDIT
        if spent > most + 0.01:
            broken(f"of {size} rows, one of {n} tokens takes as long as {spent:.2f} passes, not {most:.2f} at most")


@pytest.mark.parametrize(("device", "size"), [(device, size) for device in DEVICES for size in SIZES[device]])
@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_is_slower(kind: str, device: str, size: int) -> None:
    batch = decode(recorded(kind), size, device_costs(device))
    least = LEAST.get((kind, device, size), SLOWEST)
    assert batch.speed >= least, f"{size} rows are {batch.speed:.3f} times as fast as without drafts, not {least}"
    check_rows(batch, size)


@pytest.mark.parametrize(("device", "size"), [("metal", 2), ("cuda", 4)])
@pytest.mark.parametrize("make", [Wrong, Changing])
def test_strategies_that_are_wrong_cost_the_credit(make: Make, device: str, size: int) -> None:
    asked = [(Request([0], [i % 50 for i in range(200)]), True), *recorded("beside")[:3]]
    check_rows(decode(asked, size, device_costs(device), make), size)


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
