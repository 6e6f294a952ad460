"""Rows of a batch with drafts decode as they do alone.

Plain decoding gives the right answer. CONFORMANCE_PROFILE=full runs 2000 programs on each kind of cache.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.draft import batch_planner
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import BatchKVCache

from conformance.doors.batch import FREE, asked, break_part
from conformance.subjects.architectures import batched
from conformance.subjects.families import model_of
from conformance.testing.decode.batch_checks import (
    check_alone,
    check_cancels,
    check_draws,
    check_ends,
    check_failure,
    complaints,
    others,
)
from conformance.testing.decode.batch_programs import FAMILIES, run_programs

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.mark.parametrize("name", batched())
def test_rows_are_alone(name: str) -> None:
    """Rows that accept all, half or none of their drafts, and a row without drafts."""
    assert complaints(name) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_programs(family: str) -> None:
    run_programs(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_end_inside_a_block(family: str) -> None:
    check_ends(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cancelled_row(family: str) -> None:
    check_cancels(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_are_alone(family: str) -> None:
    check_draws(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_blocks(family: str) -> None:
    """Drafts of a hundred tokens: one fully right, one fully wrong."""
    requests = [asked(family, 5, 100, share, num_draft_tokens=100) for share in (1.0, 0.0)]
    requests[1][0].max_tokens = 6
    for got in check_alone(family, requests, BatchGenerator(model_of(family).model)):
        assert got.stats
        assert got.stats.reason is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_that_cannot_be_trimmed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting stops with a reason, and the drafted block leaves no trace."""
    monkeypatch.setattr(batch_planner, "can_trim_prompt_cache", lambda *_: False)
    for got in check_alone(family, others(family)):
        assert not any(got.drafted)
        assert got.stats is None or got.stats.reason == "the cache cannot be trimmed by row"


def test_rows_without_values() -> None:
    """An indexer caches only keys: its values have width 0. Writing them by row ended the process."""
    cache, keys = BatchKVCache([0, 0]), mx.zeros((2, 1, 3, 4))
    for n in ([1, 0], [0, 2]):
        cache.update_and_fetch(keys, keys[..., :0])
        cache.trim(n)
    assert [one.shape for one in cache.update_and_fetch(keys, keys[..., :0])] == [(2, 1, 8, 4), (2, 1, 8, 0)]
    mx.eval(cache.keys, cache.values)


PARTS = ["sampler", "processor", "propose", "observe", "accept"]


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("part", PARTS)
def test_a_failure_is_alone(part: str, at: int) -> None:
    check_failure(part, at)


@pytest.mark.parametrize("part", PARTS)
def test_all_rows_fail(part: str) -> None:
    check_failure(part, 2, n_broken=3)


@pytest.mark.parametrize("part", ["sampler", "processor"])
def test_a_failure_behind_the_last_token(part: str) -> None:
    """A failure after the last token: the pass that feeds it draws one more token, which is not used."""
    late = asked("llama", 4, 3)
    break_part(late[0], part, 3)
    generator = BatchGenerator(model_of("llama").model, draft_costs=FREE, rows_fail_alone=True)
    check_alone("llama", [late, others("llama")[0]], generator)
