"""What drafting costs the other rows of a batch: tox run -e micro

The suite runs each test once, without timing. No test asserts a time.
"""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.draft import DraftStats, EditStrategy
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import BatchGenerator

from conformance.doors.batch import FREE, Request, insert
from conformance.lab.micro.backward_scan import text
from conformance.subjects.families import model_of


@pytest.mark.parametrize("n", [1_000, 100_000])
@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_a_row_joins(benchmark: Any, drafted: bool, n: int) -> None:
    """Three steps of a row, in which another one joins, whose prompt of so many tokens was in a cache."""
    benchmark.group = f"three steps, a row of {n} tokens joins"
    model, held = model_of("llama").model, [token % 64 for token in text(n)]

    def start() -> tuple[tuple[BatchGenerator], dict[str, Any]]:
        generator = BatchGenerator(model, draft_costs=FREE)
        insert(generator, Request([1, 2, 3], 64))
        for _ in range(4):
            generator.next()
        planner = Planner(EditStrategy(), 8, DraftStats(), FREE) if drafted else None
        generator.insert([[5]], [64], all_tokens=[held], planners=[planner])
        return (generator,), {}

    def steps(generator: BatchGenerator) -> None:
        for _ in range(3):
            generator.next()

    benchmark.pedantic(steps, setup=start, rounds=15, warmup_rounds=1)
