"""The longest draft of every architecture is exact, also with quantized weights and past the length of its training.

A block gives the bits of single steps. Layers that have another form for long blocks say so, and are drafted less.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.draft.model import longest_draft
from mlx_lm.models.cache import snapshot_prompt_cache
from mlx_lm.models.mla import QuantizedMultiLinear
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE
from mlx_lm.models.switch_layers import SwitchLinear

from conformance.subjects.architectures import CONFIGS, build, make_cache, runnable

VOCAB, GROUP = 64, 32
# It fills the windows of the tiny configurations, and is longer than the sequences of those that scale with the length.
PROMPT = [(7 * i + 3) % VOCAB for i in range(21)]
# No short block.
LONG = 17
# The widths that matter to quantize latent layers.
WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
# The models whose blocks are not row-identical on a CPU: docs/contracts.md says why.
ROUNDING = {"deepseek_v32", "deepseek_v41", "glm_moe_dsa"}
# Quantized experts need an argument that the oldest mlx that mlx-lm allows does not take.
UNQUANTIZED = () if "global_scale" in (mx.gather_qmm.__doc__ or "") else (SwitchLinear,)
pytestmark = pytest.mark.usefixtures("uncompiled")


def widened(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: GROUP if key in WIDTHS else widened(value) for key, value in config.items()}


def quantize(model: Any) -> None:
    """Quantize all layers that can be, of those that the model does not leave out."""
    wanted = getattr(model, "quant_predicate", None) or (lambda *_: True)

    def is_quantized(path: str, layer: Any) -> bool:
        # afm7 has a layer that does not know the modes of mlx.
        can = hasattr(layer, "to_quantized") and "mode" in signature(layer.to_quantized).parameters
        can &= not isinstance(layer, UNQUANTIZED)
        return can and layer.weight.shape[-1] % GROUP == 0 and bool(wanted(path, layer))

    nn.quantize(model, group_size=GROUP, bits=4, class_predicate=is_quantized)


def make(name: str, form: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIGS, name, widened(CONFIGS[name]))
        model = build(name)
    if form == "4 bits":
        quantize(model)
    return model


def complaints(name: str, form: str) -> list[int]:
    """The lengths of blocks that differ from single steps. Empty if the model is right."""
    model, found = make(name, form), []
    longest = longest_draft(model, "auto") + 1
    lengths = (min(longest, LONG), longest)
    tokens = [(5 * i + 1) % VOCAB for i in range(sum(lengths))]
    block, step = make_cache(model), make_cache(model)
    for cache in (block, step):
        model(mx.array([PROMPT]), cache=cache)
    for n in lengths:
        part, tokens = tokens[:n], tokens[n:]
        snapshot_prompt_cache(block)
        got = model(mx.array([part]), cache=block)
        right = [model(mx.array([[token]]), cache=step) for token in part]
        if not mx.array_equal(got, mx.concatenate(right, axis=1)).item():
            found.append(n)
    return found


@pytest.mark.parametrize("form", ["float32", "4 bits"])
@pytest.mark.parametrize("name", [name for name in runnable() if name not in ROUNDING])
def test_the_longest_draft(name: str, form: str) -> None:
    if mx.default_device() != mx.cpu:
        pytest.skip("The kernels of this device are not row-identical.")
    assert complaints(name, form) == []


@pytest.mark.parametrize("name", sorted(ROUNDING.intersection(runnable())))
def test_models_that_round_draft_little(name: str) -> None:
    assert longest_draft(make(name, "4 bits"), "auto") < LONG


@pytest.mark.planted
@pytest.mark.parametrize(
    ("name", "layer"),
    [("deepseek_v3", QuantizedMultiLinear), ("internlm2", DynamicNTKScalingRoPE)],
)
def test_a_layer_that_does_not_say_it_is_found(name: str, layer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(layer, "short_block")
    assert complaints(name, "4 bits") != []
