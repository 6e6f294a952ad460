"""A tiny qwen2 with random weights. It stands in for the one hub model that upstream's tests load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from conformance import FIXTURE

NAME = "mlx-community/Qwen1.5-0.5B-Chat-4bit"
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": 1019,
}


def with_model(tree: Path) -> Path:
    """Write the model below a tree, and return the tree. A test that runs there finds it, and does not ask the hub."""
    # The tests of a tree need the mlx_lm of that tree, and what they import first must not bring another one.
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen2

    path = tree / NAME
    path.mkdir(parents=True)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FIXTURE / name, path)
    tokenizer = specials_last(json.loads((FIXTURE / "tokenizer.json").read_text()))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    mx.random.seed(0)
    model = qwen2.Model(qwen2.ModelArgs.from_dict(CONFIG))
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(CONFIG))
    return tree


def specials_last(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Number the special tokens last, as the real model does: the tests expect that token 0 is "!"."""
    vocab, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    for token in vocab:
        vocab[token] = (vocab[token] - len(added)) % len(vocab)
    for token in added:
        token["id"] = vocab[token["content"]]
    return tokenizer
