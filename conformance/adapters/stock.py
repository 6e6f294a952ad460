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

DRAFTERS = ("similar", "contrary", "unrelated")
OPTIONS = options_of("speculative_generate_step")
COMMANDS = {name: ["--draft-model", FIXTURE] for name in ("generate", "server")}


def fits() -> bool:
    return takes("speculative_generate_step", "draft_model")


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import speculative_generate_step

    both = _both(model, drafts, prompt_cache, options)
    steps = speculative_generate_step(mx.array(prompt), model, options.pop("draft_model"), **options)
    try:
        yield from steps
    finally:
        steps.close()
        _split(both, prompt_cache, drafts)


def stream(
    model: Any, prompt: list[int], drafts: Drafts, tokenizer: Any, *, prompt_cache: Any, **options: Any
) -> Iterator[Any]:
    from mlx_lm.generate import stream_generate

    both = _both(model, drafts, prompt_cache, options)
    responses = stream_generate(model, tokenizer, mx.array(prompt), **options)
    try:
        for response in responses:
            _split(both, prompt_cache, drafts)
            yield response
    finally:
        responses.close()
        _split(both, prompt_cache, drafts)


def _both(model: Any, drafts: Drafts, prompt_cache: list[Any], options: dict[str, Any]) -> list[Any]:
    """The caches of both models, which the release takes in one list, and the options for a draft model."""
    draft_model = drafts.draft_model(model)
    both = [*prompt_cache, *(drafts.left or make_prompt_cache(draft_model))]
    options |= {"draft_model": draft_model, "num_draft_tokens": 3, "prompt_cache": both}
    return both


def _split(both: list[Any], prompt_cache: list[Any], drafts: Drafts) -> None:
    n = len(prompt_cache)
    prompt_cache[:], drafts.left = both[:n], both[n:]


def snapshot(caches: list[Any]) -> Any:
    return copy.deepcopy(caches)


def restore(caches: list[Any], snapshot: Any) -> None:
    caches[:] = copy.deepcopy(snapshot)


def can_trim(caches: list[Any], n: int) -> bool:
    return bool(can_trim_prompt_cache(caches))
