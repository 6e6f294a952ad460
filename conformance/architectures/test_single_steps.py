"""Every model that mlx-lm ships runs on its tiny configuration, with and without the series."""

from __future__ import annotations

import mlx.core as mx
import pytest

from conformance.testing.models.architectures import build, make_cache, runnable

PROMPT = 20
STEPS = 3
VOCAB = 64


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", runnable())
def test_a_prompt_and_single_steps_give_finite_logits(name: str) -> None:
    model = build(name)
    cache = make_cache(model)
    tokens = mx.random.randint(0, VOCAB, (1, PROMPT))
    for _ in range(1 + STEPS):
        logits = model(tokens, cache=cache)
        assert logits.shape == (*tokens.shape, VOCAB)
        assert mx.isfinite(logits).all().item()
        tokens = mx.argmax(logits[:, -1:], axis=-1)
