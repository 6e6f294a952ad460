"""The series with a draft head, whose cache is part of the model's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.draft import EditStrategy, HeadDraftStrategy, HeadedModel
from mlx_lm.generate import speculative_generate_step, stream_generate

from conformance.adapters import HEADS, Drafts
from conformance.adapters.series import OPTIONS, fits
from conformance.adapters.stock import side_by_side
from conformance.drafters import Head
from conformance.oracle.findings import WHOLE

__all__ = ["OPTIONS", "fits"]
DRAFTERS = HEADS


def _headed(model: Any, drafts: Drafts) -> tuple[Any, dict[str, Any]]:
    """The model, and the options that draft with it. The head knows the text by places, also in a second turn."""
    n_held = drafts.left[0][0].offset if drafts.left else 0
    strategy = HeadDraftStrategy(EditStrategy() if drafts.name == "head and edit" else None)
    drafts.strategy = strategy
    headed = HeadedModel(model, Head([0] * n_held + list(drafts.right)))
    return headed, {"draft_strategy": strategy, "num_draft_tokens": 5, **WHOLE}


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    headed, how = _headed(model, drafts)
    yield from side_by_side(
        partial(speculative_generate_step, mx.array(prompt), headed, **how | options), drafts, prompt_cache
    )


def stream(
    model: Any, prompt: list[int], drafts: Drafts, tokenizer: Any, *, prompt_cache: Any, **options: Any
) -> Iterator[Any]:
    headed, how = _headed(model, drafts)
    start = partial(stream_generate, headed, tokenizer, mx.array(prompt), **how | options)
    yield from side_by_side(start, drafts, prompt_cache)
