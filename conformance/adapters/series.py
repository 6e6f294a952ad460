"""mlx-lm with the patches of this repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm import draft
from mlx_lm.generate import speculative_generate_step, stream_generate
from mlx_lm.models.cache import can_trim_prompt_cache as can_trim
from mlx_lm.models.cache import restore_prompt_cache as restore
from mlx_lm.models.cache import snapshot_prompt_cache as snapshot
from mlx_lm.models.cache import trim_prompt_cache as trim

from conformance.adapters import DECODING, FIXTURE, HEADS, Drafts, arguments_of
from conformance.adapters.stock import side_by_side
from conformance.drafters import VOCAB, AtDepth, Head, Scripted
from conformance.oracle.findings import WHOLE

__all__ = ["can_trim", "restore", "snapshot", "trim"]

OPTIONS = DECODING & arguments_of("speculative_generate_step")
_LOOKUP = ["--draft-type", "auto", "--disable-adaptive-gate"]
COMMANDS = {
    "generate": _LOOKUP,
    "chat": _LOOKUP,
    "server": _LOOKUP,
    "generate, a draft model": ["--draft-model", FIXTURE],
}
REQUEST = {"draft_type": "auto", "disable_adaptive_gate": True}


def fits() -> bool:
    """Another tree lacks a name that is imported above."""
    return True


def _reference(right: list[int]) -> list[int]:
    """The text with one wrong token: half of the drafts are wrong in part."""
    return [*right[:-8], 5, *right[-7:]]


def _table(right: list[int]) -> Any:
    """A memory that has learned the text, and the text with other tokens in between."""
    table = draft.NgramModTable(3, vocab_size=VOCAB)
    for shown in (right, [*right[: len(right) // 2], 1, 2, 3]):
        draft.NgramModStrategy(table).observe(shown)
    return table


# Each strategy of the package that needs no model, and those that know the answer. A draft model is asked for by the
# adapter of the release.
MAKERS: dict[str, Callable[[list[int]], Any]] = {
    "scripted": Scripted,
    "none right": lambda right: AtDepth(right, 0),
    "one right": lambda right: AtDepth(right, 1),
    "two right": lambda right: AtDepth(right, 2),
    "all right": lambda right: AtDepth(right, 3),
    "NgramSimpleStrategy": lambda right: draft.NgramSimpleStrategy(2, _reference(right)),
    "SuffixStrategy": lambda right: draft.SuffixStrategy(draft_reference=_reference(right)),
    "EditStrategy": lambda right: draft.EditStrategy(draft_reference=_reference(right)),
    "NgramModStrategy": lambda right: draft.NgramModStrategy(_table(right)),
}
# A stage of the series may not have all.
DRAFTERS = tuple(name for name in MAKERS if not name.endswith("Strategy") or hasattr(draft, name))
DRAFTERS += HEADS if hasattr(draft, "HeadedModel") else ()


def _drafting(model: Any, drafts: Drafts, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, and the options that draft with it. A head knows the text by places, also in a second turn."""
    if drafts.name in HEADS:
        n_held = drafts.left[0][0].offset if drafts.left else 0
        model = draft.HeadedModel(model, Head([0] * n_held + list(drafts.right)))
        drafts.strategy = draft.HeadDraftStrategy(draft.EditStrategy() if drafts.name == "head and edit" else None)
    else:
        drafts.strategy = MAKERS[drafts.name](list(drafts.right))
    longest = 3 if drafts.name in MAKERS and not drafts.name.endswith("Strategy") else 5
    return model, {"draft_strategy": drafts.strategy, "num_draft_tokens": longest, **WHOLE, **options}


def decode(model: Any, prompt: list[int], drafts: Drafts, *, prompt_cache: Any, **options: Any) -> Iterator[Any]:
    model, how = _drafting(model, drafts, options)
    yield from side_by_side(partial(speculative_generate_step, mx.array(prompt), model, **how), drafts, prompt_cache)


def stream(
    model: Any, prompt: list[int], drafts: Drafts, tokenizer: Any, *, prompt_cache: Any, **options: Any
) -> Iterator[Any]:
    model, how = _drafting(model, drafts, options)
    yield from side_by_side(partial(stream_generate, model, tokenizer, mx.array(prompt), **how), drafts, prompt_cache)
