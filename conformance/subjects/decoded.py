"""The models that decode: one for each kind of cache, with random weights, whose text repeats itself.

A text that repeats itself is one that prompt lookup drafts for. So each token adds to the logits of one other token,
and most of the text goes round a few cycles, which the weights leave now and then: drafts are right in part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.models import cache as cache_module

from conformance.drafters import VOCAB
from conformance.oracle.findings import not_offered
from conformance.subjects.architectures import CONFIGS, build, leaves, make_cache

WINDOW, CYCLE = 16, 6
# The longest drafts of the tests.
K = 3
# How much a token adds to the logit of the one that mostly follows it.
PULL = 9.0
LAST = VOCAB // CYCLE * CYCLE
FOLLOWER = [(i - i % CYCLE + (i + 1) % CYCLE) % LAST for i in range(VOCAB)]


def prompt_of(length: int) -> list[int]:
    """Cycles with a break now and then."""
    tokens = [3]
    while len(tokens) < length:
        tokens.append((tokens[-1] * 5 + 11) % VOCAB if len(tokens) % 11 == 0 else FOLLOWER[tokens[-1]])
    return tokens


@dataclass(frozen=True)
class Family:
    """A model, the cache it decodes with, and the prompts: below a window, at its end and past it where it has one."""

    name: str
    model: str
    prompts: tuple[int, ...] = (21,)
    options: dict[str, Any] = field(default_factory=dict)
    # Every layer gets a ring of that many tokens, as --max-kv-size makes.
    max_kv_size: int = 0

    def __hash__(self) -> int:
        return hash(self.name)

    def caches(self) -> list[Any]:
        model = model_of(self)
        if self.max_kv_size:
            return [cache_module.RotatingKVCache(self.max_kv_size, keep=4) for _ in model.layers]
        return make_cache(model)

    def rests_on(self) -> list[str]:
        """The names of the classes of its caches, of those that are in a list too."""
        caches = self.caches()
        held = [(type(one).__name__, getattr(one, "keep", 0)) for one in (*caches, *leaves(caches))]
        names = {name for name, _ in held} | {f"{name} with keep" for name, keep in held if keep}
        return [self.model, *sorted(names), *(["QuantizedKVCache"] if self.options else [])]


QUANTIZED = {"kv_bits": 8, "kv_group_size": 32}
EDGES = (6, WINDOW - 2, WINDOW, 27)
FAMILIES = [
    Family("llama", "llama"),
    Family("llama quantized", "llama", options=QUANTIZED | {"quantized_kv_start": 0}),
    # Quantization begins inside of a block.
    Family("llama quantized late", "llama", options=QUANTIZED | {"quantized_kv_start": 25}),
    Family("llama max_kv_size", "llama", (9, 21), max_kv_size=WINDOW),
    Family("gemma3_text", "gemma3_text", EDGES),
    Family("llama4", "llama4", (9, 21)),
    Family("mamba", "mamba"),
    Family("qwen3_next", "qwen3_next"),
    Family("lfm2", "lfm2"),
    Family("falcon_h1", "falcon_h1"),
    Family("nanbeige", "nanbeige"),
    Family("deepseek_v41", "deepseek_v41", EDGES[1:]),
    Family("baichuan_m1", "baichuan_m1"),
    Family("iquestloopcoder", "iquestloopcoder"),
    Family("gemma4_text", "gemma4_text", EDGES),
    Family("longcat_flash_ngram", "longcat_flash_ngram"),
]


def steered(model: Any) -> Any:
    """The model itself, of a class of its own: whoever asks it for an attribute finds what it has."""
    base = type(model)

    def call(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        logits: mx.array = base.__call__(self, inputs, *args, **kwargs)
        following = mx.array(FOLLOWER)[inputs][..., None] == mx.arange(logits.shape[-1])
        return logits + PULL * following[:, -logits.shape[1] :]

    model.__class__ = type(base.__name__, (base,), {"__call__": call, "__module__": base.__module__})
    return model


@cache
def model_of(family: Family) -> Any:
    """One model a family."""
    if find_spec(f"mlx_lm.models.{family.model}") is None:
        not_offered(f"the tree has no mlx_lm.models.{family.model}")
    try:
        return steered(_made(family.model))
    except (TypeError, KeyError, ValueError) as error:
        not_offered(f"the suite has no configuration for the {family.model} of this tree: {error}")


def _made(name: str) -> Any:
    # With a window in every other layer, as it comes, llama would be one more sliding model.
    full = {"layer_types": None, "sliding_window": None, "head_dim": 32}
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | full}):
        return build(name)


# The same models with a text that is their own.
unsteered = cache(_made)
