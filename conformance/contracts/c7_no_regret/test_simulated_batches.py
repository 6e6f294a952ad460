"""The cost and the gain of drafts in a batch on recorded streams.

Nothing is timed: the costs of blocks come from a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftStats, Planner, SuffixStrategy, batch_planner, device_costs, planner
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.draft.planner import CREDIT, CREDIT_OF_ROW, MAX_AUTO_DRAFT
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import KVCache

from conformance.drafters import Changing, Wrong
from conformance.lab.simulate.batches import DEVICES, KINDS, SIZES, Asked, Make, Result, decode, requests, together
from conformance.lab.texts.recorded_streams import VOCAB, Request

SLOWEST = 0.98


@cache
def recorded(kind: str) -> tuple[Asked, ...]:
    return tuple(requests(kind, seeds=range(100, 101)))


def regrets(asked: Sequence[Asked], size: int, costs: BlockCosts, make: Make = SuffixStrategy) -> list[str]:
    """The rows that drafting slows down by more than the allowed share, and the batch if it does."""
    result = decode(asked, size, costs, make)
    found = [] if result.speed >= SLOWEST else [f"all: {result.speed:.3f}"]
    for row in result.ended:
        n = len(row.request.answer)
        if row.spent > (1 + CREDIT_OF_ROW) * n + CREDIT + 0.01:
            found.append(f"{n} tokens: {row.spent:.2f}")
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_is_slower(kind: str, device: str) -> None:
    for size in SIZES:
        assert regrets(recorded(kind), size, device_costs(device)) == [], size


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [Wrong, Changing])
def test_strategies_that_are_wrong_cost_the_credit(make: Make, device: str) -> None:
    asked = [(Request([0], [i % 50 for i in range(200)]), True), *recorded("beside")[:3]]
    for size in SIZES[:4]:
        rows = [complaint for complaint in regrets(asked, size, device_costs(device), make) if "all" not in complaint]
        assert rows == [], size


def test_a_batch_of_copies_is_faster() -> None:
    speeds = [decode(recorded("copying"), size, device_costs("cuda")).speed for size in SIZES]
    assert min(speeds) > 2
    assert decode(recorded("copying"), 2, device_costs("metal")).speed > 1.2


@pytest.mark.planted
def test_rows_without_a_credit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a row without drafts pays for the others without a limit."""

    init = BatchPlanner.__init__

    def init_without_credit(self: BatchPlanner, *args: Any) -> None:
        init(self, *args)
        self.rows.default_factory = lambda: Planner(Wrong(), 1, DraftStats())

    monkeypatch.setattr(BatchPlanner, "__init__", init_without_credit)
    assert regrets(recorded("beside"), 4, device_costs("cuda")) != []


@pytest.mark.planted
def test_a_batch_without_credit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(Request([0], [i % 50 for i in range(200)]), True)]
    monkeypatch.setattr(planner, "CREDIT", 1e9)
    assert regrets(asked, 4, device_costs("cuda"), Changing) != []


@pytest.mark.planted
def test_lengths_as_of_one_row_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a batch plans as if the other rows cost nothing."""

    def of_one_row(rows: list[Iterable[float]], costs: BlockCosts, credit: float) -> tuple[int, float]:
        lengths: list[tuple[int, float]] = [planner.best_length([row], costs, credit) for row in rows]
        return max(lengths)

    monkeypatch.setattr(batch_planner, "best_length", of_one_row)
    assert any(regrets(recorded(kind), 16, device_costs("metal")) for kind in KINDS)


class Known:
    """A model with a given answer for each prompt. The first token of a prompt identifies it."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.texts = [[*request.prompt, *request.answer, 0, 0] for request, _ in asked]
        self.size = 2 + max(map(max, self.texts))
        self.blocks: list[tuple[int, int]] = []

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.blocks.append(inputs.shape)
        seen = cache[0].offset if isinstance(cache[0].offset, mx.array) else mx.array([cache[0].offset] * len(inputs))
        # The cache holds the fed tokens, so that a wrong trim is visible.
        rows = inputs[:, None, :, None].astype(mx.float32)
        keys, _ = cache[0].update_and_fetch(rows, rows)
        padding = getattr(cache[0], "left_padding", mx.zeros(len(inputs), mx.int32)).tolist()
        said = [
            [self.following(keys[i, 0, p:, 0].tolist(), n + t) for t in range(inputs.shape[1])]
            for i, (n, p) in enumerate(zip(seen.tolist(), padding, strict=True))
        ]
        return mx.eye(self.size)[mx.array(said)]

    def following(self, fed: list[float], n: int) -> int:
        text = self.texts[int(fed[0])]
        return text[n + 1] if n + 1 < len(text) and text[:n] == fed[:n] else 0


def alike(asked: Sequence[Asked]) -> list[Asked]:
    """Start each prompt with its number."""
    return [(Request([i, *request.prompt], request.answer), drafted) for i, (request, drafted) in enumerate(asked)]


def batch_blocks(asked: Sequence[Asked], costs: BlockCosts) -> list[tuple[int, int]]:
    """The blocks that a real batch feeds after the prompts."""
    model = Known(asked)
    batch = BatchGenerator(model, draft_costs=costs, prefill_batch_size=16)
    batch._planner._vocab_size = VOCAB
    uids = batch.insert(
        [request.prompt for request, _ in asked],
        [len(request.answer) for request, _ in asked],
        planners=[
            Planner(SuffixStrategy(), MAX_AUTO_DRAFT, DraftStats(), costs) if drafted else None for _, drafted in asked
        ],
    )
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for response in responses:
            said[response.uid].append(response.token)
    assert list(said.values()) == [request.answer for request, _ in asked]
    # All prompts are one block, without their last tokens.
    return model.blocks[1:]


# How many requests of each kind.
ASKED = {"copies": ("copying", None), "beside": ("beside", None), "one": ("mixed", 1)}


def numbered(name: str) -> list[Asked]:
    kind, n = ASKED[name]
    return alike(recorded(kind)[:n])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ASKED)
def test_the_simulation_is_what_the_batch_does(name: str, device: str) -> None:
    asked, costs = numbered(name), device_costs(device)
    assert together(asked, costs).blocks == batch_blocks(asked, costs)


@pytest.mark.planted
def test_another_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the batch never feeds ahead."""
    asked, costs = numbered("one"), device_costs("metal")
    simulated: Result = together(asked, costs)
    monkeypatch.setattr(BatchPlanner, "runs_ahead", lambda *_: False)
    assert simulated.blocks != batch_blocks(asked, costs)
