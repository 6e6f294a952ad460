"""mlx-lm with the patches of this repository."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import mlx.core as mx

from conformance.adapters import FIXTURE, Drafts
from conformance.testing.drafts.scripted import Scripted

DRAFTERS = ("scripted", "suffix", "similar", "contrary")
OPTIONS = ("max_tokens", "sampler", "logits_processors", "prompt_cache", "kv_bits", "kv_group_size")
_LOOKUP = ["--draft-type", "auto", "--disable-adaptive-gate"]
COMMANDS = {
    "generate": _LOOKUP,
    "chat": _LOOKUP,
    "server": _LOOKUP,
    "generate, a draft model": ["--draft-model", FIXTURE],
}
REQUEST = {"draft_type": "auto", "disable_adaptive_gate": True}


def fits() -> bool:
    return find_spec("mlx_lm.draft") is not None


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    from mlx_lm.draft import SuffixStrategy
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.models.cache import make_prompt_cache

    options |= {"prompt_cache": prompt_cache, "num_draft_tokens": 3}
    both = prompt_cache
    if drafts.name in ("similar", "contrary"):
        draft_model = drafts.draft_model(model)
        both = [*prompt_cache, *make_prompt_cache(draft_model)]
        options |= {"draft_model": draft_model, "prompt_cache": both}
    else:
        strategy = Scripted(drafts.right, max(drafts.right) + 1) if drafts.name == "scripted" else SuffixStrategy()
        options |= {"draft_strategy": strategy, "disable_adaptive_gate": True}
    steps = speculative_generate_step(mx.array(prompt), model, **options)
    try:
        yield from steps
    finally:
        steps.close()
        prompt_cache[:] = both[: len(prompt_cache)]


def snapshot(caches: list[Any]) -> Any:
    from mlx_lm.models.cache import snapshot_prompt_cache

    return snapshot_prompt_cache(caches)


def restore(caches: list[Any], snapshot: Any) -> None:
    from mlx_lm.models.cache import restore_prompt_cache

    restore_prompt_cache(caches, snapshot)


def can_trim(caches: list[Any], n: int) -> bool:
    from mlx_lm.models.cache import can_trim_prompt_cache

    return bool(can_trim_prompt_cache(caches, n))


def trim(caches: list[Any], n: int) -> Any:
    from mlx_lm.models.cache import trim_prompt_cache

    return trim_prompt_cache(caches, n)
