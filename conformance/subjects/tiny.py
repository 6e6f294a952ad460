"""Models with random weights on disk, for a server to load. Each token is a character."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import qwen2
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from conformance import FIXTURE
from conformance.subjects.architectures import CONFIGS, build

CHARACTERS = string.ascii_letters + string.digits + "._"
# The models never give this token, so only a limit or a stop word ends an answer.
END = len(CHARACTERS)
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}_{% endfor %}"
# As most do: each message begins with its role and ends with the end token. A model needs a row for that token.
ENDED_TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
ENDED = {"vocab_size": END + 1}


def save(name: str, folder: Path, template: str = CHAT_TEMPLATE, **changes: Any) -> Path:
    """Write the model of an architecture, with changes of its config, and a tokenizer. Returns the folder.

    Encoding a decoded text gives the same tokens, so a prompt that contains an answer contains its tokens.
    """
    config = CONFIGS[name] | {"model_type": name, "eos_token_id": END} | changes
    assert config["vocab_size"] == len(CHARACTERS) + (template == ENDED_TEMPLATE)
    with patch.dict(CONFIGS, {name: config}):
        weights = dict(tree_flatten(build(name).parameters()))
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_index(path, weights)
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(CHARACTERS)}, []))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=template)
    fast.save_pretrained(path)
    return path


def as_qwen2(folder: Path) -> Path:
    """The fixture as a qwen2 model, which supports pipelines. The additional weights are biases of zero."""
    made = folder / "qwen2"
    made.mkdir()
    for path in FIXTURE.glob("*token*"):
        shutil.copy(path, made)
    shutil.copy(FIXTURE / "chat_template.jinja", made)
    config = json.loads((FIXTURE / "config.json").read_text()) | {"model_type": "qwen2"}
    (made / "config.json").write_text(json.dumps(config))
    model = qwen2.Model(qwen2.ModelArgs.from_dict(config))
    weights: dict[str, mx.array] = mx.load(str(FIXTURE / "model.safetensors"))
    zeros = {k: mx.zeros_like(v) for k, v in tree_flatten(model.parameters()) if k.endswith("proj.bias")}
    model.update(tree_unflatten(list((zeros | weights).items())))
    model.set_dtype(mx.float16)
    flat = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(made / "model.safetensors"), flat, {"format": "mlx"})
    _write_index(made, flat)
    return made


def _write_index(path: Path, weights: dict[str, mx.array]) -> None:
    """Ranks read in it which file has their weights."""
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
