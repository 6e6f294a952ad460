"""stream_generate(prompt_lookup_num_tokens=N) and stream_generate(draft_type=NAME), as in published experiments."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx

from conformance.adapters import Drafts
from conformance.adapters.looks import options_of, takes
from conformance.adapters.stock import can_trim, trim

try:
    from mlx_lm.models.cache import restore_prompt_cache as restore
    from mlx_lm.models.cache import snapshot_prompt_cache as snapshot
except ImportError:
    from conformance.adapters.stock import restore, snapshot

__all__ = ["can_trim", "restore", "snapshot", "trim"]

_LOOKUP: dict[str, Any] = {"prompt_lookup_num_tokens": 3}
_NGRAMS: dict[str, Any] = {"num_draft_tokens": 3, "ngram_size": 3, "disable_adaptive_gate": True}
_WAYS = {"lookup": _LOOKUP, **{name: {"draft_type": name} | _NGRAMS for name in ("ngram-simple", "ngram-mod")}}
_TAKEN = [name for name in ("prompt_lookup_num_tokens", "draft_type") if takes("stream_generate", name)]
DRAFTERS = tuple(name for name, how in _WAYS.items() if not how.keys().isdisjoint(_TAKEN))
OPTIONS = options_of("stream_generate")
_SIMPLE = ["--draft-type", "ngram-simple", "--num-draft-tokens", "4", "--ngram-size", "3", "--disable-adaptive-gate"]
COMMANDS = dict.fromkeys(("generate", "chat", "server"), _SIMPLE)
if "lookup" in DRAFTERS:
    COMMANDS["generate"] = ["--prompt-lookup-num-tokens", "4"]
REQUEST = {"draft_type": "ngram-simple"} | _NGRAMS if "draft_type" in _TAKEN else {}


def fits() -> bool:
    # The series takes both, and has an adapter of its own.
    return bool(DRAFTERS) and find_spec("mlx_lm.draft") is None


def _tokens_only() -> Any:
    """A tokenizer without an end token and without text."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    made = MagicMock(spec=TokenizerWrapper)
    made.eos_token_ids = set()
    made.detokenizer = MagicMock(last_segment="")
    return made


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import stream_generate

    responses = stream_generate(model, _tokens_only(), mx.array(prompt), **_WAYS[drafts.name], **options)
    try:
        for response in responses:
            yield response.token, response.logprobs, response.from_draft
    finally:
        responses.close()
