"""Tiny checkpoints with a head, with random weights and in the form in which each family is published.

Names are raw, norms and experts are as they are stored, the head is behind the model or beside it.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_flatten

from conformance.heads.forms import FORMS, OF_HEAD, OF_MODEL, ROOTS, Form, is_centred
from conformance.subjects.architectures import CONFIGS, build

# Widths that 32 divides, so that each matrix has a quantized form.
MLA = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
# Each token mostly leads to the next but four, in the model and in its head, so that drafts are right in part: as
# much larger than the weights of mlx are an embedding, which then outweighs what the layers add, and its way through.
PULL, STRAIGHT, STEP = 40, 6, 5


def config_of(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the suite, wide enough, with changes: those of the text where it has its own."""
    config = deepcopy(CONFIGS[FORMS[family].model])
    text = config.get("text_config", config)
    text.update((MLA if "kv_lora_rank" in text else {}) | changes)
    return config


def model_of(family: str, seed: int = 0) -> Any:
    """The model with the layers of its head behind its own, as mlx-lm computes it."""
    form = FORMS[family]
    with patch.dict(CONFIGS, {form.model: config_of(family, form.said | form.more)}):
        return build(form.model, seed)


def write(family: str, folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint: config.json and model.safetensors, and a file of the head where it has one."""
    form = FORMS[family]
    weights = dict(tree_flatten(model_of(family, seed).parameters()))
    for name, value in weights.items():
        if "norm" in name and value.ndim == 1:
            weights[name] = 1 + 0.3 * mx.random.normal(value.shape)
    _steer(weights)
    made = _raw(form, weights)
    root = ROOTS.get(form.model, "model.layers.")
    raw, head = dict[str, mx.array](), _parts(form, made)
    for name, value in made.items():
        number = int(name.removeprefix(root).split(".")[0]) if name.startswith(root) else -1
        if number in form.layers:
            head |= _of_head(form, name.replace(f"{root}{number}.", form.layers[number]), value)
        elif number < len(CONFIGS[form.model].get("hybrid_override_pattern", "**")):
            raw[name] = value
    if form.model == "qwen3_5_moe":
        raw, head = fused(raw), fused(head) if form.fused else head
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(family, form.said) | {"eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    files = {"model.safetensors": raw, form.beside: head} if form.beside else {"model.safetensors": raw | head}
    for file, tensors in files.items():
        mx.save_safetensors(str(folder / file), tensors, metadata={"format": "pt"})
    return folder


def _steer(weights: dict[str, mx.array]) -> None:
    """Let each token lead to another, unless the embedding is the output, which would repeat one."""
    embedding, output = _embedding(weights), next((name for name in weights if name.endswith("lm_head.weight")), None)
    if output:
        weights[output] += mx.roll(weights[embedding], STEP, axis=0)
    weights[embedding] *= PULL if output else 8


def _embedding(weights: dict[str, mx.array]) -> str:
    [name] = [name for name in weights if name.endswith(("embed_tokens.weight", "embeddings.weight"))]
    return name


def _parts(form: Form, made: dict[str, mx.array]) -> dict[str, mx.array]:
    """The parts of a head that no layer has."""
    embedding, head = made[_embedding(made)], dict[str, mx.array]()
    n = embedding.shape[1]
    for one in form.depths():
        *norms, projection, last = one.parts
        head |= {name: 1 - is_centred(form) + 0.3 * mx.random.normal((n,)) for name in [*norms, last] if name}
        matrix = mx.random.normal((n, 2 * n)) * n**-0.5
        # The half of the embedding also goes straight through.
        start = n if form.model == "mimo" else 0
        matrix[:, start : start + n] += STRAIGHT * mx.eye(n)
        head[str(projection)] = matrix
        for name, of_model in zip(one.own, (embedding, made.get("lm_head.weight")), strict=True):
            if name:
                head[name] = of_model + 0.1 * mx.random.normal(of_model.shape) if form.untied else of_model
    return head


def _raw(form: Form, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights of a model of mlx-lm as they are published: what its sanitize undoes."""
    made = dict[str, mx.array]()
    for name, value in weights.items():
        if is_centred(form) and "norm" in name and "linear_attn" not in name:
            value = value - 1
        if "conv1d.weight" in name:
            value = value.moveaxis(2, 1)
        if name.startswith("language_model."):
            name = re.sub("^language_model.(model.)?", lambda m: "model.language_model." if m[1] else "", name)
        for ours, theirs in OF_MODEL.get(form.model, {}).items():
            name = name.replace(ours, theirs)
        made |= _experts(name, value)
    for name in [name for name in made if name.endswith("embed_q.weight")]:
        keys, values = made.pop(name), made.pop(name.replace("embed_q", "unembed_out"))
        both = mx.concatenate([keys.swapaxes(-1, -2), values], axis=1)
        made[name.replace("embed_q", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
    return made


def _experts(name: str, value: mx.array) -> dict[str, mx.array]:
    """One tensor an expert."""
    if ".switch_mlp." not in name:
        return {name: value}
    name = name.replace(".fc1.", ".up_proj.").replace(".fc2.", ".down_proj.")
    return {name.replace("switch_mlp", f"experts.{i}"): one for i, one in enumerate(value)}


def _of_head(form: Form, name: str, value: mx.array) -> dict[str, mx.array]:
    """A tensor of a layer by the name that it has in a head, unless that has no such part."""
    for ours, theirs in OF_HEAD.get(form.model, {}).items():
        name = name.replace(ours, theirs)
    return {} if form.model == "longcat_flash" and re.search(r"\.1\.|0\.mlp\.", name) else {name: value}


def fused(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Tensors whose experts are in two: gate and up, down."""
    made = {name: value for name, value in tensors.items() if not re.search(r"\.experts\.\d", name)}
    for stem in {name.split(".experts.")[0] for name in tensors.keys() - made.keys()}:
        n = len([name for name in tensors if name.startswith(f"{stem}.experts.") and name.endswith("up_proj.weight")])
        gate, up, down = (
            mx.stack([tensors[f"{stem}.experts.{i}.{part}_proj.weight"] for i in range(n)])
            for part in ("gate", "up", "down")
        )
        made[f"{stem}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        made[f"{stem}.experts.down_proj"] = down
    return made
