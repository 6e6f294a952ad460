"""One model for each kind of cache, its prompt, and how it is decoded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import MagicMock, patch

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance.oracle.recorder import Step
from conformance.oracle.whole import WHOLE
from conformance.subjects.architectures import CONFIGS, build, make_cache

GENERATE = sys.modules["mlx_lm.generate"]
VOCAB, WINDOW, K = 64, 16, 3
PROMPT = [(7 * i + 3) % VOCAB for i in range(21)]


class Counted:
    """A model that records the length of every block, and can make a special cache for a test."""

    def __init__(self, model: Any, make: Callable[[], list[Any]] | None = None) -> None:
        self.model, self.layers = model, model.layers
        self.make_cache = make or (lambda: make_cache(model))
        self.blocks: list[int] = []

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.blocks.append(inputs.size)
        logits: mx.array = self.model(inputs, cache=cache)
        return logits


@cache
def model_of(family: str) -> Counted:
    # By default llama has a window in every second layer here. Then it would be another sliding-window model.
    full = {"layer_types": None, "sliding_window": None, "head_dim": 32}
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | full}):
        model = build(family.split()[0])
    if family == "llama max_kv_size":
        return Counted(model, lambda: [RotatingKVCache(WINDOW, keep=4) for _ in model.layers])
    return Counted(model)


def shape(layers: list[Any]) -> list[Any]:
    """The parts of caches that are equal if they hold the same tokens, in any order of rows."""
    inner = [shape(list(c.caches)) if hasattr(c, "caches") else [] for c in layers]
    return [(type(c), getattr(c, "offset", 0), i) for c, i in zip(layers, inner, strict=True)]


def tokenizer(*eos: int) -> Any:
    made = MagicMock(spec=TokenizerWrapper)
    made.eos_token_ids = set(eos)
    made.detokenizer = MagicMock(last_segment="")
    return made


def lookup(model: Any, prompt: list[int], drafter: Any, **kwargs: Any) -> Any:
    """speculative_generate_step with a drafter of a test. All drafts are fed, at any cost."""
    step = GENERATE.speculative_generate_step
    arguments = {"draft_strategy": drafter, "num_draft_tokens": K, **WHOLE}
    return step(mx.array(prompt), model, **arguments, **kwargs)


def seeded(model: Any, prompt: list[int], n: int, **kwargs: Any) -> list[Step]:
    """Plain decoding with the same seed as the drafted run."""
    mx.random.seed(7)
    return list(generate_step(mx.array(prompt), model, max_tokens=n, **kwargs))
