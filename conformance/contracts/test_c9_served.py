"""mlx_lm.server on two ranks gives the same text as on one rank.

Requests use every way to draft, they overlap, and a client leaves early. The ranks stay in step.
"""

from __future__ import annotations

from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.doors.ranks import serve_on_ranks
from conformance.doors.server.process import Body
from conformance.doors.server.requests import Right, judge_all, load
from conformance.oracle.findings import broken
from conformance.server.traffic import GATE_OFF, Session, check_ends
from conformance.subjects.prompts import PROMPTS
from conformance.subjects.tiny import ENDED, ENDED_TEMPLATE, as_qwen2, save

WAYS: list[Body] = [
    {"draft_type": "none"},
    {"draft_type": "ngram-simple", "ngram_size": 2, "disable_adaptive_gate": True},
    {"draft_type": "ngram-mod", "ngram_size": 4},
    {"draft_type": "suffix", "num_draft_tokens": 4},
    {"draft_type": "auto", "seed": 1},
    {"prediction": {"type": "content", "content": "total = 0\nfor name in rows:\n"}},
    # They need not pay here. Drafts of several rows.
    *([{"draft_type": "ngram-simple", "disable_adaptive_gate": True}] * 2),
]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("how", ["tensor", "pipeline"])
def test_the_server(tmp_path: Path, how: str) -> None:
    model, right = as_qwen2(tmp_path) if how == "pipeline" else FIXTURE, Right()
    # The requests of each share a memory, of another kind.
    options = ["--pipeline"] if how == "pipeline" else ["--draft-type", "ngram-mod", "--ngram-size", "4"]
    bodies = ({"model": str(model), "messages": PROMPTS[name], "max_tokens": 24} for name in cycle(["tool", "json"]))
    asked = [body | way for body, way in zip(bodies, WAYS, strict=False)]
    by = "auto" if how == "pipeline" else "ngram-mod"
    with serve_on_ranks(tmp_path, *options, model=model) as client:
        with closing(client.pieces(asked[1])) as pieces:
            next(pieces)
        judge_all(asked, answers := load(client, asked, 4), right, by)
        if not any(answer.draft.get("accepted") for answer in answers[-2:]):
            broken(f"no drafted token is accepted: {answers}")
        assert client.healthy()


@pytest.mark.usefixtures("uncompiled")
def test_a_session_with_prefixes(tmp_path: Path) -> None:
    """Both ranks go on from the same place, which is as near as on one rank.

    The stages of this model hold different layers: one can be trimmed, the other goes back to checkpoints.
    """
    model = save("qwen3_next", tmp_path, ENDED_TEMPLATE, **ENDED)
    options = ["--draft-type", "none", "--prompt-cache-checkpoints", "99", "--pipeline"]
    with serve_on_ranks(tmp_path, *options, model=model) as client:
        check_ends(Session(client, Right(), str(model), GATE_OFF))
