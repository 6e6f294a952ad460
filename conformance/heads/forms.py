"""How the head of each family is published: the names of its tensors, and what the configuration says of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

# The model's own layers. Those of a head are made as more layers of the model, and renamed.
N = 2
ROOTS = {"nemotron_h": "backbone.layers.", "qwen3_5": "model.language_model.layers."}
ROOTS["qwen3_5_moe"] = ROOTS["qwen3_5"]


@dataclass(frozen=True)
class Form:
    """How a head is published.

    Args:
        model: The file of the model.
        parts: The names of the norms of embedding and hidden state, of the projection, and of the last norm.
        layers: What the names of the head's layers start with, by their numbers in the model that has them too.
        more: The configuration of that model, over the one of the suite.
        said: What the published configuration says, over the one of the suite.
        own: The names of its own embedding and output, which are copies of the model's unless they are ``untied``.
        fused: Its experts are in two tensors, not in one each.
        beside: The file of the head, if it is not that of the model.
    """

    model: str
    parts: tuple[str | None, ...]
    layers: dict[int, str]
    more: dict[str, Any] = field(default_factory=lambda: {"num_hidden_layers": N + 1})
    said: dict[str, Any] = field(default_factory=lambda: {"num_nextn_predict_layers": 1})
    own: tuple[str | None, str | None] = (None, None)
    untied: bool = False
    fused: bool = False
    beside: str | None = None

    def depths(self) -> list[Form]:
        """The form of each depth: layers have all parts of a head, or are one head together."""
        first = next(iter(self.layers.values()))
        if not all(str(part).startswith(first) for part in self.parts):
            return [self]

        def renamed(names: tuple[str | None, ...], prefix: str) -> Any:
            return tuple(name and name.replace(first, prefix) for name in names)

        return [
            replace(self, layers={number: prefix}, parts=renamed(self.parts, prefix), own=renamed(self.own, prefix))
            for number, prefix in self.layers.items()
        ]


def _parts(pattern: str, names: str) -> tuple[str, ...]:
    return tuple(f"{pattern.format(name)}.weight" for name in names.split())


QWEN = _parts("mtp.{}", "pre_fc_norm_embedding pre_fc_norm_hidden fc norm")
BEHIND = _parts("model.layers.2.{}", "enorm hnorm eh_proj shared_head.norm")
OWN = "model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"


def _qwen(model: str, fused: bool = False, **said: Any) -> Form:
    # Every second layer has full attention.
    more, said = {"num_hidden_layers": 4} | said, {"mtp_num_hidden_layers": 1} | said
    return Form(model, QWEN, {3: "mtp.layers.0."}, more, said, fused=fused)


def _behind(model: str, **options: Any) -> Form:
    return Form(model, BEHIND, {N: "model.layers.2."}, own=OWN, **options)


# A configuration of Step has an entry for each layer of the head too.
STEP = {
    "layer_types": ["sliding_attention", "full_attention", *["sliding_attention"] * 3],
    "rope_theta": [10000.0, 50000.0, 500.0, 70.0, 9.0],
    "partial_rotary_factors": [1.0, 0.5, 0.5, 1.0, 0.5],
}
FORMS = {
    "qwen3_5": _qwen("qwen3_5"),
    "qwen3_5_moe": _qwen("qwen3_5_moe"),
    # As Qwen3.6 has them
    "qwen3_5_moe_fused": _qwen("qwen3_5_moe", fused=True),
    "qwen3_next": _qwen("qwen3_next", mlp_only_layers=[]),
    "exaone_moe": Form(
        "exaone_moe",
        QWEN,
        {N: "mtp.layers.0."},
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "is_moe_layer": [False, True, False],
        },
        {"num_nextn_predict_layers": 1, "mtp_layer_types": ["sliding_attention"]},
    ),
    # The model file knows layer 61 as the head, so it has a file of its own.
    "deepseek_v3": _behind("deepseek_v3", beside="mtp.safetensors"),
    "deepseek_v32": _behind("deepseek_v32"),
    "glm_moe_dsa": _behind("glm_moe_dsa"),
    "glm4_moe": _behind("glm4_moe"),
    "glm4_moe_lite": _behind("glm4_moe_lite", untied=True),
    "longcat_flash": Form(
        "longcat_flash",
        (*_parts("model.mtp.layers.0.{}", "enorm.m hnorm.m eh_proj"), "model.mtp.norm.weight"),
        {N: "model.mtp.layers.0."},
        {"num_layers": 3},
        own=("model.mtp.embed_tokens.weight", None),
    ),
    "mimo": Form(
        "mimo",
        _parts("model.mtp_layers.0.{}", "token_layernorm hidden_layernorm input_proj final_layernorm"),
        {N: "model.mtp_layers.0."},
        # One that mlx does not take by itself
        said={"num_nextn_predict_layers": 1, "rms_norm_eps": 1.0},
    ),
    "mimo_v2_flash": Form(
        "mimo_v2_flash",
        _parts("model.mtp.layers.0.{}", "enorm hnorm eh_proj final_layernorm"),
        {2: "model.mtp.layers.0.", 3: "model.mtp.layers.1."},
        {"num_hidden_layers": 4, "moe_layer_freq": [0, 1, 0, 0], "hybrid_layer_pattern": [0, 1, 1, 1]},
        # As in the real one: twice those of the other layers. Values are not scaled: mlx-lm 0.32.1 does not do it.
        {"swa_num_key_value_heads": 4, "n_shared_experts": None, "attention_value_scale": 1.0},
    ),
    "step3p5": Form(
        "step3p5",
        (*BEHIND[:3], "model.layers.2.transformer.shared_head.norm.weight"),
        {number: f"model.layers.{number}." for number in (2, 3, 4)},
        {"num_hidden_layers": 5},
        {"num_nextn_predict_layers": 3} | STEP,
        own=(None, "model.layers.2.transformer.shared_head.output.weight"),
        untied=True,
    ),
    "nemotron_h": Form(
        "nemotron_h",
        (*_parts("mtp.layers.0.{}", "enorm hnorm eh_proj"), "mtp.layers.1.final_layernorm.weight"),
        {4: "mtp.layers.0.", 5: "mtp.layers.1."},
        {"num_hidden_layers": 6, "hybrid_override_pattern": ["M", "*", "-", "E", "*", "E"]},
        {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
    ),
    "ernie4_5_moe": Form(
        "ernie4_5_moe",
        (*_parts("model.mtp_{}.0", "emb_norm hidden_norm linear_proj"), None),
        {N: "model.mtp_block.0."},
        {"num_hidden_layers": 3},
        {"num_nextn_predict_layers": 1, "moe_layer_end_index": 1, "tie_word_embeddings": True},
    ),
}
# The parts of a layer that have other names in a head.
OF_HEAD = {
    "mimo_v2_flash": {"post_attention_layernorm": "pre_mlp_layernorm"},
    # It has the first of each pair, and no experts.
    "longcat_flash": {
        ".mlps.0.": ".transformer_layer.mlp.",
        ".self_attn.0.": ".self_attn.",
        ".input_layernorm.0.": ".input_layernorm.",
        ".post_attention_layernorm.0.": ".post_attention_layernorm.",
    },
}
# Those of other names in the model.
OF_MODEL = {
    "exaone_moe": {".gate.e_score_correction_bias": ".e_score_correction_bias"},
    "step3p5": {
        ".mlp.switch_mlp.": ".moe.",
        ".mlp.gate.gate.": ".moe.gate.",
        ".mlp.gate.router_bias": ".moe.router_bias",
        ".mlp.share_expert.": ".share_expert.",
    },
}


def is_centred(form: Form) -> bool:
    """Whether norms are stored minus one."""
    return form.model.startswith("qwen3") or form.model == "step3p5"
