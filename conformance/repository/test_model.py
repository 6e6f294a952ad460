"""What scripts/model.sh downloads becomes a model that mlx-lm loads. Nothing is downloaded here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from conformance.smollm2 import convert as conversion

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
    about: dict[str, Any] = {name: mx.array(HIDDEN) for name in conversion.NUMBERS.values()}
    numbers = {"block_count": 1, "attention.head_count": HEADS, "attention.head_count_kv": HEADS}
    numbers |= {"vocab_size": len(TOKENS)}
    about |= {f"llama.{name}": mx.array(number) for name, number in numbers.items()}
    about |= {"llama.attention.layer_norm_rms_epsilon": mx.array(1e-5), "llama.rope.freq_base": mx.array(10000.0)}
    about |= {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.merges": ["a n", "Ġ an", "1 2"]}
    about |= {"tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(TOKENS) - 3))}
    about |= {"tokenizer.ggml.bos_token_id": mx.array(1), "tokenizer.ggml.eos_token_id": mx.array(2)}
    about["tokenizer.chat_template"] = "{{ messages[0]['content'] }}<|im_end|>"
    return arrays, about


@pytest.mark.parametrize("options", [[], ["--4bit"]], ids=["bfloat16", "4bit"])
def test_a_file_of_llama_cpp_becomes_a_model(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``scripts/check.sh --model smollm2`` decodes with the real weights."""
    with monkeypatch.context() as patched:
        patched.setattr(mx, "load", lambda path, return_metadata: of_llama_cpp())
        patched.setattr(sys, "argv", ["convert", "a.gguf", str(tmp_path), *options])
        assert conversion.main() == 0
    model, tokenizer = load(str(tmp_path))
    logits = model(mx.array([tokenizer.encode("abc an zy")]))
    assert logits.shape[-1] == len(TOKENS)
    assert mx.isfinite(logits).all().item()
    assert [TOKENS[i] for i in tokenizer.encode("an an 12<|im_end|>")] == ["an", "Ġan", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("can an 12")) == "can an 12"
    assert tokenizer.eos_token_ids == {2}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "an"}], tokenize=False)
    assert prompt == "an<|im_end|>"
