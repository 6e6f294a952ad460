"""A head where rows of a batch share it, and where a prompt goes back to a checkpoint."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, EditStrategy, HeadDraftStrategy, HeadedModel

from conformance.contracts.c11_prefixes import sessions
from conformance.drafters import Head
from conformance.oracle.compare import most
from conformance.oracle.heads import held
from conformance.oracle.rows import FREE, Plain, Rows
from conformance.oracle.run import Case, N
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import FAMILIES, model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
OF = {family.name: family for family in FAMILIES}
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))


@pytest.mark.contract("C10")
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "falcon_h1", "gemma3_text"])
def test_rows_share_a_head(name: str) -> None:
    """In a batch that is smaller than they are many, a third of them without drafts, and a third gated."""
    case = Case(OF[name])
    plain = Plain(HeadedModel(model_of(case.family), Head([*case.prompt, *case.plain().tokens], wrong=3)))
    options = {"draft_costs": FREE, "completion_batch_size": 3, "prefill_batch_size": 2}
    batch = Rows(plain, lambda _, distance, scale: distance <= scale * most(case.family), **options)
    rows = [plain.ask([*case.prompt[i:], 3 * i], N - 3 * i) for i in range(5)]
    for i, row in enumerate(rows):
        if i % 3 < 2:
            row.strategy, row.costs = HeadDraftStrategy(EditStrategy()), COSTS if i % 3 else None
            row.strategy.attach(plain.model)
    batch.insert(*rows)
    batch.finish()
    for row in rows:
        if (tokens := held(plain.model, row.last.prompt_cache)[0]) != row.last.all_tokens[1:]:
            row.broken(f"the head holds {tokens}, not {row.last.all_tokens[1:]}")
        assert row.strategy is None or row.stats.drafted


@pytest.mark.contract("C11")
@pytest.mark.parametrize("name", ["qwen3_next", "gemma3_text"])
def test_a_head_goes_back(name: str) -> None:
    """The cache of both at a checkpoint is as if they had seen nothing else."""
    plain = sessions.Session(name, model_of(OF[name]))
    headed = HeadedModel(plain.model, Head(plain.cold(tuple(sessions.PROMPT), sessions.ANSWER).text))
    session = sessions.Session(name, headed)

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_strategy": HeadDraftStrategy(), "num_draft_tokens": 3, "disable_adaptive_gate": True}

    text = session.ask(sessions.PROMPT, drafts).text
    for one in session.ask_edits(text, (11, 17, 48, 70), drafts):
        fresh = make_cache(headed)
        headed(mx.array([one.text]), cache=fresh)
        (tokens, shown), (others, right) = held(headed, one.cache), held(headed, fresh)
        assert tokens == others == one.text[1:], f"back to {one.found} tokens: the head holds {tokens}, not {one.text}"
        assert shown == pytest.approx(right, abs=2e-3)
