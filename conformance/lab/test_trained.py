"""The trained heads: what is recorded of one belongs to the recorded streams, and gains there what the docs say."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance import FIXTURE
from conformance.lab.simulate.__main__ import TABLES
from conformance.lab.texts.recorded_streams import Stream
from conformance.lab.trained import HeadDrafts
from conformance.lab.trained.head import load_head
from conformance.lab.trained.simulated import WORK, judged, rows
from conformance.subjects.prompts import PROMPTS


@pytest.mark.parametrize("work", WORK)
def test_each_place_of_an_answer_has_a_draft(work: str) -> None:
    streams = list(judged(work))
    assert len(streams) > 20
    for stream, drafts in streams:
        request = stream.requests[0]
        assert len(drafts.tokens) == len(drafts.chances) == len(request.answer)
        right = [draft[:1] == [token] for draft, token in zip(drafts.tokens, request.answer, strict=True)]
        assert any(right), stream.name


# Where a lookup alone gives more tokens a forward pass, and by how much: on a CPU the head is hardly asked there.
BEHIND = {("real edits", "cpu"): 0.02}


def gains(streams: list[tuple[Stream, HeadDrafts]], device: str, behind: float = 0.0) -> bool:
    """Whether both give more tokens a forward pass than either alone, and no stream loses more than 3 %."""
    found = rows(streams, TABLES[device])
    means = {name: row.mean("tokens_a_forward") for name, row in found.items()}
    least = (1 - behind) * max(means["edit"], means["head"])
    return means["both"] > least and min(row.worst for row in found.values()) > 0.97


@pytest.mark.parametrize("device", TABLES)
@pytest.mark.parametrize("work", WORK)
def test_a_head_gains_beside_a_lookup(work: str, device: str) -> None:
    """On answers and edits that it was not trained on."""
    assert gains(list(judged(work)), device, BEHIND.get((work, device), 0.0))


@pytest.mark.planted
def test_drafts_of_another_place_are_found() -> None:
    late = [(one, replace(drafts, tokens=[[], *drafts.tokens[:-1]])) for one, drafts in judged("prose")]
    assert not gains(late, "m4")


@pytest.mark.parametrize("name", ["rename", "nothing_to_copy"])
def test_the_head_of_the_fixture(name: str) -> None:
    model, tokenizer = load(str(FIXTURE))
    prompt = mx.array(tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True))
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=60)]
    stats = DraftStats()
    steps = speculative_generate_step(
        prompt, model, draft_model=load_head("fixture", model), max_tokens=60, stats=stats
    )
    assert [token for token, *_ in steps] == plain
    assert stats.accepted > 0
