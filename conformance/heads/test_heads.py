"""A head where a prompt goes back to a checkpoint."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import HeadDraftStrategy, HeadedModel

from conformance.drafters import Head
from conformance.oracle import sessions
from conformance.oracle.heads import held
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import FAMILIES, model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
OF = {family.name: family for family in FAMILIES}


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
