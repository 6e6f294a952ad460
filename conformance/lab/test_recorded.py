"""What is recorded of SmolLM2 is what it says, computed by mlx."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from conformance.lab.recorded import FILES, read
from conformance.smollm2 import MODELS

pytestmark = pytest.mark.skipif(not MODELS["smollm2"].exists(), reason="scripts/model.sh was not run")
# How far a log probability may be off, in thousandths: numpy adds in another order.
NEAR = 10


def test_the_recorded_answers_are_the_models() -> None:
    """Their likeliest tokens and log probabilities."""
    model: Any = load(str(MODELS["smollm2"]))[0]
    model.set_dtype(mx.float32)
    for one in read(FILES["answers"])[3:60:28]:
        start = len(one["prompt"]) - 1
        logits = model(mx.array([one["prompt"] + one["answer"][:-1]]))[0, start:]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        found = mx.take_along_axis(logprobs, mx.array(one["likeliest"]), axis=-1)
        assert mx.max(mx.abs(1000 * found - mx.array(one["logprobs"]))).item() < NEAR
        # Of two that are as likely either may come first.
        assert mx.max(logprobs.max(axis=-1) - found[:, 0]).item() < NEAR / 1000
