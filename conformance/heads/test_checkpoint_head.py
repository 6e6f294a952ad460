"""The head of a checkpoint, as docs/drafting.md brings it to the interface, with random values for its weights."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import mimo

from conformance import ROOT

pytestmark = pytest.mark.contract("C4")
PROMPT, N = mx.array([(7 * i + 3) % 64 for i in range(21)]), 24
ARGS = mimo.ModelArgs("mimo", 64, 3, 128, 4, 1e-5, 64, 2)
PREFIX = "model.mtp_layers.0."
# The names of a published checkpoint, MiMo-7B, besides those that each layer of the model has.
NAMES = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")


def test_a_checkpoint_head() -> None:
    mx.random.seed(0)
    model = mimo.Model(ARGS)
    weights = dict(tree_flatten(model.parameters()))
    layer = {name.removeprefix("model.layers.0."): w.shape for name, w in weights.items() if ".layers.0." in name}
    shapes = layer | {f"{name}.weight": (64, 128) if name == "input_proj" else (64,) for name in NAMES}
    of_head = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes.items()}
    # The class of the page.
    [code] = re.findall(
        r"<!-- head -->\n(.*?)<!-- end head -->", (ROOT / "docs" / "drafting.md").read_text(), re.DOTALL
    )
    made: dict[str, Any] = {}
    exec(dedent(code), made)
    head = made["MiMoHead"](model, weights | {PREFIX + name: weight for name, weight in of_head.items()})
    # Each weight of the head has its place, and its value.
    found = dict(tree_flatten(head.parameters()))
    assert found.keys() == of_head.keys()
    assert all(mx.array_equal(found[name], weight) for name, weight in of_head.items())
    stats = DraftStats()
    plain = [token for token, _ in generate_step(PROMPT, model, max_tokens=N)]
    steps = speculative_generate_step(PROMPT, model, max_tokens=N, stats=stats, draft_model=head, num_draft_tokens=3)
    assert [token for token, *_ in steps] == plain
    assert stats.drafted > 0
