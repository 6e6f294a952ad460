"""A stock release of mlx-lm: a draft model, trim_prompt_cache, and copies as snapshots, as its server makes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.models.cache import trim_prompt_cache as trim

from conformance.adapters import DECODING, FIXTURE, Drafts, arguments_of

__all__ = ["restore", "snapshot", "trim"]

_TAKEN = arguments_of("speculative_generate_step")
DRAFTERS = ("similar", "contrary", "unrelated")
OPTIONS = DECODING & _TAKEN
COMMANDS = {name: ["--draft-model", FIXTURE] for name in ("generate", "server")}


def fits() -> bool:
    return "draft_model" in _TAKEN


def snapshot(caches: list[Any]) -> Any:
    return copy.deepcopy(caches)


def restore(caches: list[Any], snapshot: Any) -> None:
    caches[:] = copy.deepcopy(snapshot)


def can_trim(caches: list[Any], n: int) -> bool:
    return bool(can_trim_prompt_cache(caches))


# What an experiment, or the series from its first stages on, has itself.
if len(signature(can_trim_prompt_cache).parameters) > 1:
    can_trim = can_trim_prompt_cache
with suppress(ImportError):
    from mlx_lm.models.cache import restore_prompt_cache as restore  # type: ignore[no-redef]
    from mlx_lm.models.cache import snapshot_prompt_cache as snapshot  # type: ignore[no-redef]


def side_by_side(start: Callable[..., Any], drafts: Drafts, prompt_cache: list[Any]) -> Iterator[Any]:
    """Decode with the caches of both in one list, as the release takes them, and give each its own back."""
    n, both = len(prompt_cache), [*prompt_cache, *drafts.left]
    steps = start(prompt_cache=both)
    try:
        for step in steps:
            prompt_cache[:], drafts.left = both[:n], both[n:]
            yield step
    finally:
        steps.close()
        prompt_cache[:], drafts.left = both[:n], both[n:]


def _how(model: Any, drafts: Drafts) -> dict[str, Any]:
    draft_model = drafts.draft_model(model)
    drafts.left = drafts.left or make_prompt_cache(draft_model)
    return {"draft_model": draft_model, "num_draft_tokens": 3}


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import speculative_generate_step

    start = partial(speculative_generate_step, mx.array(prompt), model, **_how(model, drafts), **options)
    yield from side_by_side(start, drafts, prompt_cache)


def stream(
    model: Any, prompt: list[int], drafts: Drafts, tokenizer: Any, *, prompt_cache: Any, **options: Any
) -> Iterator[Any]:
    from mlx_lm.generate import stream_generate

    start = partial(stream_generate, model, tokenizer, mx.array(prompt), **_how(model, drafts), **options)
    yield from side_by_side(start, drafts, prompt_cache)
