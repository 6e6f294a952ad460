"""What a row draws is what it draws alone, also against likely drafts; and the first id that is no token."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

# Trees without it batch no drafts.
import mlx_lm.draft  # noqa: F401
import pytest

from conformance.drafters import VOCAB, AtDepth
from conformance.oracle.findings import not_shown
from conformance.oracle.rows import FREE, NEAR_TIE, Plain, Rows, prompt_of
from conformance.subjects.decoded import FAMILIES, FOLLOWER, model_of, unsteered

pytestmark = pytest.mark.usefixtures("uncompiled")


class Followers:
    """Drafts what mostly follows. About half of it is drawn."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.last = tokens[-1]

    def propose(self, n_max: int) -> Sequence[int]:
        draft = [self.last]
        while len(draft) <= n_max:
            draft.append(FOLLOWER[draft[-1]])
        return draft[1:]

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


def test_a_likely_draft_is_drawn_against() -> None:
    plain = Plain(model_of(FAMILIES[0]))
    rows = [plain.ask(prompt_of(n), 40, None, 2.0) for n in (9, 12)]
    batch = Rows(plain, draft_costs=FREE)
    for row in rows:
        assert min(row.right.margins) > NEAR_TIE, "noise may change what it draws"
        row.strategy = Followers()
    batch.insert(*rows)
    batch.finish()
    for row in rows:
        if not 5 < row.stats.accepted < row.stats.drafted - 5:
            not_shown(f"{row.about}: {row.stats}")


class OneTooMany(AtDepth):
    """Drafts right tokens, and behind them the id."""

    def propose(self, n_max: int) -> Sequence[int]:
        return [*super().propose(n_max)[:-1], VOCAB]


def test_the_first_id_that_is_no_token() -> None:
    """No draft of it is fed, and a row ends where its sampler gives it."""
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
    if failing.last.finish_reason != "error":
        failing.broken(f"its sampler gave {VOCAB}, and it ends with {failing.last.finish_reason!r}")
