"""A row of a batch whose strategy raises on the first rank ends on all ranks at the same step.

A deadlock fails after a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.generate import BatchGenerator

from conformance.testing.commands.launch import Stuck, call
from conformance.testing.decode.batches import FREE, Partly, Request, alone, break_part, insert
from conformance.testing.models.architectures import build

LIMIT = 200.0
N = 24
PROMPTS = ([7, 3, 9, 4, 7, 3, 9], [5, 1, 5, 1, 5])
# A method of a strategy, and the call of it that raises.
FAILURES = [("observe", 1), ("propose", 1), ("accept", 0)]
# The tokens of each row, and why it ended.
Rows = list[list[tuple[int, str | None]]]


def fail_at_once(self: BatchPlanner, method: str, default: Any, uid: int, *args: Any) -> Any:
    """A fault: what a strategy raises ends its row before the other ranks hear of it."""
    try:
        return getattr(self.rows[uid], method)(*args)
    except Exception as e:
        self.errors[uid] = e
        return default


def batch(group: Any, method: str, at: int) -> Rows:
    """On the first rank, the strategy of the first row raises."""
    model = build("llama")
    requests = [Request(p, N, Partly([*p, *alone(model, p, N).tokens], 0.5)) for p in PROMPTS]
    if group.rank() == 0:
        break_part(requests[0], method, at)
    generator = BatchGenerator(model, draft_costs=FREE, draft_group=group)
    rows: dict[int, list[tuple[int, str | None]]] = {insert(generator, request): [] for request in requests}
    while responses := generator.next_generated():
        for response in responses:
            rows[response.uid].append((response.token, response.finish_reason))
    return list(rows.values())


def decoded(fails_at_once: bool) -> list[Rows]:
    """A batch with each failure on this rank."""
    if fails_at_once:
        BatchPlanner._attempt = fail_at_once
    group = mx.distributed.init(strict=True, backend="ring")
    return [batch(group, *failure) for failure in FAILURES]


def test_a_failing_row_ends_alike(tmp_path: Path) -> None:
    right = [alone(build("llama"), prompt, N).tokens for prompt in PROMPTS]
    ranks = call(tmp_path, LIMIT, decoded, False)
    for failure, first, second in zip(FAILURES, *ranks, strict=True):
        assert first == second, failure
        failed, other = first
        assert failed[-1][1] == "error", failure
        assert [token for token, _ in failed[:-1]] == right[0][: len(failed) - 1], failure
        assert [token for token, _ in other] == right[1], failure


@pytest.mark.planted
def test_a_row_that_ends_before_the_others_hear_is_found(tmp_path: Path) -> None:
    with pytest.raises((Stuck, RuntimeError)):
        call(tmp_path, 40.0, decoded, True)
