"""The first id that is no token: a row feeds no draft of it, and ends where its sampler gives it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

# Trees without it batch no drafts.
import mlx_lm.draft  # noqa: F401
import pytest

from conformance.drafters import VOCAB, AtDepth
from conformance.oracle.rows import FREE, Plain, Rows, prompt_of
from conformance.subjects.decoded import unsteered

pytestmark = pytest.mark.usefixtures("uncompiled")


class OneTooMany(AtDepth):
    """Drafts right tokens, and behind them the id."""

    def propose(self, n_max: int) -> Sequence[int]:
        return [*super().propose(n_max)[:-1], VOCAB]


def test_the_first_id_that_is_no_token() -> None:
    plain = Plain(unsteered("llama"))
    drafting, failing = plain.ask(prompt_of(9), 20), plain.ask(prompt_of(6), 20)
    drafting.strategy = OneTooMany([*drafting.prompt, *drafting.right.tokens], 9)
    failing.sampler, failing.may_fail = (lambda _: mx.array([VOCAB])), True
    batch = Rows(plain, draft_costs=FREE, rows_fail_alone=True)
    batch.insert(drafting, failing)
    batch.finish()
    stats = drafting.stats
    if not stats.drafted == stats.accepted > 9:
        drafting.broken(f"it drafts ids that are no tokens: {stats}")
    if failing.last.finish_reason != "error" or failing.tokens:
        failing.broken(f"its sampler gave {VOCAB}, and it went on with {failing.tokens}")
