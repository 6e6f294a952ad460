"""stream_generate(draft_type="ngram-simple" or "ngram-mod"), as in the DraftStrategy experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.adapters import Drafts, series
from conformance.adapters.looks import takes
from conformance.adapters.stock import can_trim, restore, snapshot, trim
from conformance.adapters.streams import OPTIONS, stream

__all__ = ["OPTIONS", "can_trim", "restore", "snapshot", "trim"]

DRAFTERS = ("ngram-simple", "ngram-mod")
_NGRAMS = ["--draft-type", "ngram-simple", "--num-draft-tokens", "4", "--ngram-size", "3", "--disable-adaptive-gate"]
COMMANDS = {"generate": _NGRAMS, "chat": _NGRAMS, "server": _NGRAMS}
REQUEST = {"draft_type": "ngram-simple", "ngram_size": 3, "disable_adaptive_gate": True}


def fits() -> bool:
    # The series takes it too, and has an adapter of its own.
    return takes("stream_generate", "draft_type") and not series.fits()


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    how = {"draft_type": drafts.name, "num_draft_tokens": 3, "ngram_size": 3, "disable_adaptive_gate": True}
    return stream(model, prompt, **how, **options)
