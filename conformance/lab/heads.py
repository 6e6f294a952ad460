"""Records what the heads of transformers compute on the tiny checkpoints, as right values that a test compares with.

python -m conformance.lab.heads

It needs torch 2.13 and transformers 5.24, and writes conformance/heads/recorded.safetensors.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx

from conformance.heads.forms import FORMS
from conformance.heads.published import write
from conformance.heads.reference import FILE, LENGTHS, N_DRAFTED, TEXT

BEHIND, QWEN = r"model\.layers\.[23]\.", r"^mtp"
# The tensors of the head of each family that it can be made to load. It knows real ones by their number.
NAMES = dict.fromkeys(("deepseek_v3", "glm4_moe", "glm4_moe_lite", "mimo_v2_flash", "ernie4_5_moe"), BEHIND)
NAMES |= dict.fromkeys(("exaone_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe_fused"), QWEN)
# Those of which it knows the parts by other names.
RENAMED = {
    "model.mtp_block.0.": "model.layers.2.",
    "model.mtp_emb_norm.0.": "model.layers.2.enorm.",
    "model.mtp_hidden_norm.0.": "model.layers.2.hnorm.",
    "model.mtp_linear_proj.0.": "model.layers.2.eh_proj.",
    ".pre_mlp_layernorm.": ".post_attention_layernorm.",
    ".final_layernorm.": ".shared_head.norm.",
} | {f"model.mtp.layers.{i}.": f"model.layers.{i + 2}." for i in (0, 1)}
# What its configuration says of layers.
SAID: dict[str, dict[str, Any]] = {
    "exaone_moe": {"mtp_mlp_layer_types": ["dense"]},
    "ernie4_5_moe": {"chain_hidden_post_norm": False},
    "mimo_v2_flash": {
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "mtp_layer_types": ["sliding_attention", "sliding_attention"],
        "mtp_mlp_layer_types": ["dense", "dense"],
        "rms_norm_eps": 1e-5,
        # It counts the tokens before a token, mlx-lm those with it.
        "sliding_window_size": 15,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
            for kind in ("full_attention", "sliding_attention")
        },
    },
}


def _loaded(family: str, folder: Path) -> tuple[Any, Any]:
    """The model of transformers and its head."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.modeling_layers import MtpModel

    write(family, folder)
    tensors = dict[str, mx.array]()
    for path in folder.glob("*.safetensors"):
        tensors |= mx.load(str(path))
        path.unlink()
    for ours, theirs in RENAMED.items():
        tensors = {name.replace(ours, theirs): value for name, value in tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    layers = {"mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["sparse"]}
    text |= layers | text | {"num_mtp_layers": len(FORMS[family].depths())} | SAID.get(family, {})
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model._keys_to_ignore_on_load_unexpected = [NAMES[family]]
    head = MtpModel.from_pretrained(model)
    if FORMS[family].untied:
        # It takes those of the model.
        for part, name in zip(("embed_tokens", "shared_head"), FORMS[family].own, strict=True):
            setattr(head, part, copy.deepcopy(getattr(head, part)))
            getattr(head, part).weight.data = torch.tensor(tensors[str(name)].tolist())
    return model.eval(), head.eval()


def record(family: str, folder: Path) -> dict[str, mx.array]:
    """The logits of all rows of each length, with those that it drafts from its own states, shape (L + n, V)."""
    import torch
    from transformers.cache_utils import MtpCache

    model, head = _loaded(family, folder)
    made = {}
    with torch.no_grad():
        for length in LENGTHS:
            text = torch.tensor([TEXT[: length + 1]])
            states = model(text[:, :-1], output_hidden_states=True).hidden_states[-1]
            cache, tokens, rows = MtpCache(config=model.config.get_text_config().get_mtp_config()), text[:, 1:], []
            for i in range(N_DRAFTED + 1):
                places = torch.arange(1 + i, 1 + i + length)[None, -tokens.shape[1] :]
                states = head.forward_layer(min(i, len(head.layers) - 1), states, places, cache, input_ids=tokens)
                rows.append(head._project_to_logits(states[:, -1:] if i else states))
                tokens = torch.cat([tokens[:, 1:], rows[-1][:, -1:].argmax(-1)], dim=1)
                if i + 1 >= len(head.layers):
                    tokens, states = tokens[:, -1:], states[:, -1:]
            made[f"{family}.{length}"] = mx.array(torch.cat(rows, dim=1)[0].numpy())
    return made


def main() -> None:
    made = dict[str, mx.array]()
    for family in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            made |= record(family, Path(folder))
    mx.save_safetensors(str(FILE), made)


if __name__ == "__main__":
    main()
