"""Helpers for the adapters of the published experiments, which decode through stream_generate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx

from conformance.adapters.looks import options_of

OPTIONS = options_of("stream_generate")


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
