"""The models to measure, a wider form of the fixture or any other model, and the time of their blocks of tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.draft.costs import LearnedCosts
from mlx_lm.draft.model import block_costs
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_config, save

from conformance import FIXTURE

DTYPES = {"bf16": mx.bfloat16, "fp16": mx.float16, "fp32": mx.float32}
CHUNK = 512
# Neurons in each MLP of the widened fixture: 24 M parameters.
HIDDEN = 15_360

Cache = list[Any]


@dataclass
class Subject:
    """A model to measure."""

    name: str
    weights: str
    model: Any
    tokenizer: Any

    @property
    def eos(self) -> set[int]:
        return set(self.tokenizer.eos_token_ids)

    @property
    def costs(self) -> LearnedCosts:
        """The costs of blocks that the planner uses. All runs share them, also if they wrap the model."""
        return block_costs(self.model)

    def encode(self, messages: list[dict[str, str]], answered: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=not answered)
        return ids

    def prefilled(self, tokens: list[int]) -> Cache:
        cache: Cache = make_prompt_cache(self.model)
        for start in range(0, len(tokens), CHUNK):
            self.model(mx.array(tokens[start : start + CHUNK])[None], cache=cache)
            mx.eval([c.state for c in cache])
        return cache


def copied(cache: Cache) -> Cache:
    """A copy of a cache, so that a run does not change the cache of the next one."""
    copy = deepcopy(cache)
    mx.eval([c.state for c in copy])
    return copy


def block_seconds(model: Any, cache: Cache, lengths: Sequence[int], repeats: int) -> dict[int, float]:
    """The median seconds of a block of each length. The lengths take turns.

    Each round has one more token before its blocks: CUDA prepares its attention for each length of the context anew.
    """
    samples: dict[int, list[float]] = {length: [] for length in lengths}
    cache = copied(cache)
    trimmed = can_trim_prompt_cache(cache)
    for _ in range(repeats + 1):
        mx.eval(model(mx.array([[1]]), cache=cache))
        for length in lengths:
            used = cache if trimmed else copied(cache)
            tokens = mx.array([[1 + i % 7 for i in range(length)]])
            start = time.perf_counter()
            mx.eval(model(tokens, cache=used))
            samples[length].append(time.perf_counter() - start)
            if trimmed:
                trim_prompt_cache(used, length)
    # The first round compiles, and grows the cache.
    return {length: statistics.median(values[1:]) for length, values in samples.items()}


def larger(hidden: int = HIDDEN, weights: str = "bf16") -> Subject:
    """The fixture with ``hidden`` neurons in each MLP.

    The new neurons are multiplied by zero: not a bit of what it computes changes, only the cost.
    """
    model, tokenizer = load(str(FIXTURE))
    key = mx.random.key(0)
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            axis = 1 if name == "down_proj" else 0
            shape = list(linear.weight.shape)
            shape[axis] = hidden - shape[axis]
            more = mx.zeros(shape) if axis else 0.02 * mx.random.normal(shape, key=key)
            linear.weight = mx.concatenate([linear.weight, more.astype(linear.weight.dtype)], axis)
    model.set_dtype(DTYPES[weights])
    mx.eval(model.parameters())
    count = sum(value.size for _, value in tree_flatten(model.parameters())) / 1e6
    return Subject(f"widened fixture, {count:.0f} M", weights, model, tokenizer)


def weights_of(model: Any) -> str:
    """How the weights are stored: the bits of quantized weights, or else the most frequent type."""
    bits = {part.bits for _, part in model.named_modules() if hasattr(part, "bits")}
    if bits:
        return "+".join(f"{n}-bit" for n in sorted(bits))
    types = [value.dtype for _, value in tree_flatten(model.parameters())]
    names = {dtype: name for name, dtype in DTYPES.items()}
    return names.get(max(set(types), key=types.count), "mixed")


def write(subject: Subject, folder: Path) -> None:
    """Write a form of the fixture as a model directory that a server can load."""
    config = load_config(FIXTURE)
    config["intermediate_size"] = subject.model.model.layers[0].mlp.gate_proj.weight.shape[0]
    save(folder, FIXTURE, subject.model, subject.tokenizer, config, donate_model=False)
