"""stream_generate(prompt_lookup_num_tokens=N) with snap and restore, as in the snapshot experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.adapters import Drafts, series
from conformance.adapters.looks import takes
from conformance.adapters.series import restore, snapshot
from conformance.adapters.stock import can_trim, trim
from conformance.adapters.streams import OPTIONS, stream

__all__ = ["OPTIONS", "can_trim", "restore", "snapshot", "trim"]

DRAFTERS = ("lookup",)
COMMANDS = {"generate": ["--prompt-lookup-num-tokens", "4"]}


def fits() -> bool:
    # The series takes it too, and has an adapter of its own.
    return takes("stream_generate", "prompt_lookup_num_tokens") and not series.fits()


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    return stream(model, prompt, prompt_lookup_num_tokens=3, **options)
