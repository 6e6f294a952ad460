"""The edges of drafted decoding: no draft tokens, one, and the sampler whose drafts are drawn at once."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.generate import speculative_generate_step
from mlx_lm.sample_utils import greedy_sampler, make_sampler

from conformance.adapters import Drafts
from conformance.oracle.compare import compare_shapes, compare_tokens, near, shape, within
from conformance.oracle.run import Case, Run, right_turn
from conformance.subjects.decoded import FAMILIES, K, model_of

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    ("name", "drafter", "n_draft"),
    [*((name, "similar", 0) for name in ("llama", "qwen3_next", "gemma3_text")), ("llama", "unrelated", 1)],
)
def test_few_draft_tokens(name: str, drafter: str, n_draft: int) -> None:
    """Without any, nothing is fed to the draft model or left of it. A single one is not fed to it, so it stays."""
    case = Case(BY_NAME[name], drafter, n=5)
    model, layers, right = model_of(case.family), case.family.caches(), case.plain()
    draft_model = Drafts(drafter, []).draft_model(model)
    turns = [(case.prompt, right, n_draft), (case.next_prompt, right_turn(right.case), n_draft and K)]
    for about, (prompt, wanted, n) in zip(("", "in a second turn, "), turns, strict=True):
        options = {"prompt_cache": layers, "num_draft_tokens": n, "max_tokens": len(wanted.tokens)}
        got = Run(case, layers)
        got.take(speculative_generate_step(mx.array(prompt), model, draft_model, **options))
        compare_tokens(got, wanted, about, within(near(case.family)))
        if n_draft == 0:
            compare_shapes(shape(layers), shape(wanted.caches), about)


@pytest.mark.contract("C5")
def test_a_greedy_draft_without_processors_is_drawn_at_once() -> None:
    """The loop recognizes the sampler that make_sampler returns for temperature 0."""
    assert make_sampler(0.0) is greedy_sampler
