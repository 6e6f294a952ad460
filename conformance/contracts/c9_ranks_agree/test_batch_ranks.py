"""The rows of a batch on two ranks: one whose strategy raises on the first rank ends on all ranks at the same step.

In a pipeline the stages of a hybrid hold different caches. What one of these cannot drop, no rank drafts. A deadlock
fails after a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import batch_planner
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.generate import BatchGenerator

from conformance.doors.batch import FREE, Request, alone, break_part, insert
from conformance.doors.ranks import Stuck, call
from conformance.drafters import Partly
from conformance.subjects.architectures import build

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


def requests_of(model: Any) -> list[Request]:
    return [Request(p, N, Partly([*p, *alone(model, p, N).tokens], 0.5)) for p in PROMPTS]


def answered(generator: BatchGenerator, requests: list[Request]) -> Rows:
    rows: dict[int, list[tuple[int, str | None]]] = {insert(generator, request): [] for request in requests}
    while responses := generator.next_generated():
        for response in responses:
            rows[response.uid].append((response.token, response.finish_reason))
    return list(rows.values())


def batch(group: Any, method: str, at: int) -> Rows:
    """On the first rank, the strategy of the first row raises."""
    model = build("llama")
    requests = requests_of(model)
    if group.rank() == 0:
        break_part(requests[0], method, at)
    return answered(BatchGenerator(model, draft_costs=FREE, draft_group=group), requests)


def decoded(fails_at_once: bool) -> list[Rows]:
    """A batch with each failure on this rank."""
    if fails_at_once:
        BatchPlanner._attempt = fail_at_once
    group = mx.distributed.init(strict=True, backend="ring")
    return [batch(group, *failure) for failure in FAILURES]


def staged(family: str, cannot: int | None) -> tuple[Rows, int, int]:
    """A batch on this rank's stage, the caches of one rank cannot drop. Also the tokens drafted and accepted."""
    group = mx.distributed.init(strict=True, backend="ring")
    model = build(family)
    requests = requests_of(model)
    model.model.pipeline(group)
    if group.rank() == cannot:
        batch_planner.can_trim_prompt_cache = lambda *_: False
    rows = answered(BatchGenerator(model, draft_costs=FREE, draft_group=group), requests)
    # A rank that ends takes the pass from the other one that runs ahead.
    mx.eval(mx.distributed.all_sum(mx.array(1), group=group))
    stats = [request.stats for request in requests if request.stats is not None]
    return rows, sum(s.drafted for s in stats), sum(s.accepted for s in stats)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "kimi_k3", "bailing_hybrid"])
def test_stages_with_recurrent_layers_draft(tmp_path: Path, family: str) -> None:
    right = [alone(build(family), prompt, N).tokens for prompt in PROMPTS]
    for rows, _, accepted in call(tmp_path, LIMIT, staged, family, None):
        assert [[token for token, _ in row] for row in rows] == right
        assert accepted > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_stage_cannot_drop_no_stage_drafts(tmp_path: Path, rank: int) -> None:
    """The pass with the drafts is taken back on both, whatever their caches keep of it."""
    right = [alone(build("qwen3_next"), prompt, N).tokens for prompt in PROMPTS]
    for rows, drafted, accepted in call(tmp_path, LIMIT, staged, "qwen3_next", rank):
        assert [[token for token, _ in row] for row in rows] == right
        assert drafted > 0
        assert accepted == 0


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
