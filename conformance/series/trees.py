"""Run Python on the mlx-lm of a tree, in a process of its own: the tests of the tree, or a program.

A tiny qwen2 with random weights stands in for the one hub model that upstream's tests load.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen2

from conformance import FIXTURE
from conformance.doors.programs import run

# On Linux each compiled function would start a C++ compiler.
SETTINGS = {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
METAL = ("bitnet", "gated_delta", "gated_delta_masked")
# Upstream's tests that fail on the stock release, offline, on a machine without Metal.
FAIL_ON_STOCK = (
    # They ask a trained model to say TEST.
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings",
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings_prefill",
    # They call a Metal kernel, which a Mac has.
    *(f"test_models.py::TestModels::test_{name}" for name in METAL if sys.platform != "darwin"),
    # It compares sampled texts with and without a cached prompt, and random weights give a flat distribution.
    "test_server.py::TestServer::test_handle_completions",
    # It lists the models of the hub's cache, which is empty.
    "test_server.py::TestServer::test_handle_models",
)
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
# In fewer columns pytest cuts off the name of the error.
PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "240", "PYTHONDONTWRITEBYTECODE": "1"}
# A tree may change within a second, which Python does not see of what it compiled. The end of Python would wait for
# threads that are left behind, of a failed test or of a server.
RUN_TESTS = "import os, pytest, sys; sys.dont_write_bytecode = True; os._exit(pytest.main(sys.argv[1:]))"


def in_tree(
    tree: Path, folder: Path, *arguments: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, on the mlx-lm of a tree."""
    env = {**SETTINGS, **PYTEST, "PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"}
    return run(arguments, cwd=folder, env=env, timeout=timeout)


def run_tests(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the mlx-lm of a tree, without the tests that fail on the stock release."""
    left_out = [f"--deselect=tests/{test}" for test in FAIL_ON_STOCK]
    return in_tree(tree, tree, "-c", RUN_TESTS, "-q", "-p", "no:cacheprovider", *arguments, *left_out)


def with_model(tree: Path) -> Path:
    """Write the model below a tree, and return the tree. A test that runs there finds it, and does not ask the hub."""
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
