"""C4 where blocks are inexact: a margin has near ties decided by single steps, so no token is another one."""

from __future__ import annotations

import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance.drafters import Scripted
from conformance.oracle.findings import WHOLE
from conformance.oracle.recorder import Run
from conformance.oracle.rows import prompt_of
from conformance.subjects.architectures import RESTORED
from conformance.subjects.decoded import unsteered
from conformance.subjects.inexact import InBfloat16, OfAnotherKernel

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.contract("C4")]
TOKENS, NOISE, PROMPT = 54, 0.02, prompt_of(21)
MODELS = ["llama", "gemma3_text", "mamba", "qwen3_next", "deepseek_v41"]


def decoded(family: str, margin: float | str) -> tuple[bool, DraftStats]:
    """Whether a noisy model with half of the drafts right gives the tokens of plain decoding, and the statistics."""
    model = InBfloat16(unsteered(family)) if margin == "auto" else OfAnotherKernel(unsteered(family), logits=NOISE)
    right, got = Run(PROMPT).loop(generate_step, model, TOKENS), Run(PROMPT, stats=DraftStats())
    options = {"draft_strategy": Scripted(right.text), "num_draft_tokens": 5, "draft_margin": margin, **WHOLE}
    got.loop(speculative_generate_step, model, TOKENS, **options)
    return got.tokens == right.tokens, got.stats


def test_the_noise_changes_tokens_without_a_margin() -> None:
    """Else the tests below could not fail."""
    assert not all(decoded(family, 0.0)[0] for family in MODELS)


@pytest.mark.parametrize("margin", [2 * NOISE, "auto"])
@pytest.mark.parametrize("family", MODELS)
def test_a_margin_decides_near_ties(family: str, margin: float | str) -> None:
    equal, stats = decoded(family, margin)
    assert equal, f"{family} with a margin of {margin}: other tokens than plain decoding"
    # Each near tie costs one more forward pass. If a block is restored, its right tokens cost another.
    extra = stats.forwards - (TOKENS - stats.accepted + 1) - stats.near_ties
    assert stats.near_ties > 0
    assert 0 <= extra <= (stats.cycles if family in RESTORED else 0)
