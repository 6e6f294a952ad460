"""A stock release of mlx-lm: a draft model, trim_prompt_cache, and copies as snapshots, as its server makes them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.models.cache import trim_prompt_cache as trim

from conformance.adapters import FIXTURE, Drafts
from conformance.adapters.looks import options_of, takes

__all__ = ["trim"]

DRAFTERS = ("similar", "contrary")
OPTIONS = options_of("speculative_generate_step")
COMMANDS = {name: ["--draft-model", FIXTURE] for name in ("generate", "server")}


def fits() -> bool:
    return takes("speculative_generate_step", "draft_model")


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import speculative_generate_step

    draft_model = drafts.draft_model(model)
    # speculative_generate_step takes the caches of both models in one list.
    both = [*prompt_cache, *make_prompt_cache(draft_model)]
    options |= {"prompt_cache": both, "num_draft_tokens": 3}
    steps = speculative_generate_step(mx.array(prompt), model, draft_model, **options)
    try:
        yield from steps
    finally:
        steps.close()
        prompt_cache[:] = both[: len(prompt_cache)]


def snapshot(caches: list[Any]) -> Any:
    return copy.deepcopy(caches)


def restore(caches: list[Any], snapshot: Any) -> None:
    caches[:] = copy.deepcopy(snapshot)


def can_trim(caches: list[Any], n: int) -> bool:
    return bool(can_trim_prompt_cache(caches))
