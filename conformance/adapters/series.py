"""mlx-lm with the patches of this repository."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache as can_trim
from mlx_lm.models.cache import restore_prompt_cache as restore
from mlx_lm.models.cache import snapshot_prompt_cache as snapshot
from mlx_lm.models.cache import trim_prompt_cache as trim

from conformance.adapters import FIXTURE, Drafts
from conformance.adapters.looks import options_of
from conformance.drafters import Scripted

__all__ = ["can_trim", "restore", "snapshot", "trim"]

# A draft model is asked for by the adapter of the release.
DRAFTERS = ("scripted", "suffix")
OPTIONS = options_of("speculative_generate_step")
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


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    from mlx_lm.draft import SuffixStrategy
    from mlx_lm.generate import speculative_generate_step

    strategy = Scripted(drafts.right, max(drafts.right) + 1) if drafts.name == "scripted" else SuffixStrategy()
    how = {"draft_strategy": strategy, "num_draft_tokens": 3, "disable_adaptive_gate": True}
    yield from speculative_generate_step(mx.array(prompt), model, **how, **options)
