"""The session of an agent, and models of several kinds with random weights that take part in it."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from conformance import FIXTURE
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.prompts import Message

# The tables compare with the first one, whose cache can be trimmed to any length.
NAMES = ("llama", "gemma3_text", "qwen3_next", "mamba2", "lfm2")
THINKING = ["<think>", "</think>"]
TEMPLATE = """{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == "user" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{{- "<|" + m.role + "|>" -}}
{%- if m.reasoning_content and loop.index0 > ns.last -%}
{{- "<think>\n" + m.reasoning_content + "\n</think>\n" -}}
{%- endif -%}
{{- m.content + "<|end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|><think>\n" -}}{%- endif -%}"""
WORDS = "the agent reads a file and calls tools then says what it found in this old part of code for each test".split()
# The messages of each request and its answer.
Asked = dict[str, tuple[list[Message], Message]]


@dataclass(frozen=True)
class Plan:
    hidden: int = 128
    layers: int = 4
    window: int = 256
    turns: int = 10
    # In words; a word is two or three tokens of the fixture.
    text: int = 40
    repeats: int = 5
    # The prompts that a server may cache.
    entries: int = 10


FULL = Plan()
QUICK = Plan(hidden=64, layers=2, window=64, turns=4, text=10, repeats=1)


def session(plan: Plan) -> Asked:
    """The messages of each request, by what it is: the same every time."""
    rng = random.Random("session 1")

    def text(words: float) -> str:
        return " ".join(rng.choices(WORDS, k=int(words)))

    def message(role: str, words: float) -> Message:
        return {"role": role, "content": text(words)}

    def answer() -> Message:
        return message("assistant", plan.text / 8) | {"reasoning_content": text(plan.text / 8)}

    tools = [{"name": f"tool_{i}", "description": text(plan.text / 2)} for i in range(4)]
    system: Message = {"role": "system", "content": f"{text(plan.text)}\n{json.dumps(tools)}"}
    history, asked = [system], {}
    for turn in range(plan.turns):
        role, said = "tool" if turn % 3 else "user", answer()
        history.append(message(role, plan.text))
        asked[f"turn {turn + 1}, {role}"] = [*history], said
        history.append(said)
    # The file that a call in the middle returned has changed.
    place = 1 + 2 * (plan.turns // 2)
    old = history[place]["content"].split()
    old[len(old) // 2 : len(old) // 2 + 5] = text(5).split()
    history[place] = history[place] | {"content": " ".join(old)}
    history.append(message("user", plan.text))
    asked["a file has changed"] = asked["the same again"] = history, answer()
    asked["another conversation"] = [system, message("user", plan.text)], answer()
    return asked


def sizes(name: str, plan: Plan) -> dict[str, Any]:
    """What differs from the tiny model of an architecture."""
    size = {"vocab_size": 1026, "eos_token_id": 0, "hidden_size": plan.hidden, "num_hidden_layers": plan.layers}
    size |= {"intermediate_size": 3 * plan.hidden, "max_position_embeddings": 65536}
    own: dict[str, dict[str, Any]] = {
        "llama": {"layer_types": None, "sliding_window": None},
        "gemma3_text": {"sliding_window": plan.window},
        "qwen3_next": {"full_attention_interval": plan.layers, "mlp_only_layers": list(range(plan.layers))},
        # Heads of 16.
        "mamba2": {"num_heads": plan.hidden // 8},
        "lfm2": {"block_dim": plan.hidden, "layer_types": ["conv", "full_attention"] * (plan.layers // 2)},
    }
    return CONFIGS[name] | size | own[name] | {"model_type": name}


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    made.add_tokens(THINKING)
    return made


def save(name: str, plan: Plan, folder: Path) -> Path:
    """Write a model with random weights, and the tokenizer of the fixture with tokens for thinking."""
    config = sizes(name, plan)
    with patch.dict(CONFIGS, {name: config}):
        weights = dict(tree_flatten(build(name).parameters()))
    shutil.copy(FIXTURE / "tokenizer_config.json", folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder
