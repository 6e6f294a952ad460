"""Helpers for the adapters of the published experiments, which decode through stream_generate."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx

OPTIONS = ("max_tokens", "sampler", "logits_processors", "prompt_cache", "kv_bits", "kv_group_size")


def generate_module() -> Any:
    """The module mlx_lm.generate. An import from the package gives the function of that name."""
    return importlib.import_module("mlx_lm.generate")


def takes(function: str, argument: str) -> bool:
    """Whether a function of mlx_lm.generate names an argument."""
    found = getattr(generate_module(), function, None)
    return found is not None and argument in inspect.signature(found).parameters


def tokens_only() -> Any:
    """A tokenizer without an end token and without text."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    made = MagicMock(spec=TokenizerWrapper)
    made.eos_token_ids = set()
    made.detokenizer = MagicMock(last_segment="")
    return made


def stream(model: Any, prompt: list[int], **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import stream_generate

    responses = stream_generate(model, tokens_only(), mx.array(prompt), **options)
    try:
        for response in responses:
            yield response.token, response.logprobs, response.from_draft
    finally:
        responses.close()
