"""prompt_lookup_generate_step(backend=NAME), as in a later experiment. Each name that the type allows is judged."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from conformance.adapters import Drafts
from conformance.adapters.looks import generate_module, options_of, takes
from conformance.adapters.stock import can_trim, restore, snapshot, trim

__all__ = ["can_trim", "restore", "snapshot", "trim"]

OPTIONS = options_of("prompt_lookup_generate_step")
COMMANDS = {"generate": ["--prompt-lookup-num-tokens", "4"]}


def _backends() -> tuple[str, ...]:
    """The names in the type of the argument, or else its default."""
    if not fits():
        return ()
    function = generate_module().prompt_lookup_generate_step
    annotation = typing.get_type_hints(function).get("backend")
    listed = [name for part in (annotation, *typing.get_args(annotation)) for name in typing.get_args(part)]
    default = inspect.signature(function).parameters["backend"].default
    return tuple(name for name in listed if isinstance(name, str)) or (default if isinstance(default, str) else "",)


def fits() -> bool:
    return takes("prompt_lookup_generate_step", "backend")


DRAFTERS = _backends()


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    from mlx_lm.generate import prompt_lookup_generate_step

    how: dict[str, Any] = {"backend": drafts.name} if drafts.name else {}
    for longest in ("num_draft_tokens", "prompt_lookup_num_tokens"):
        if takes("prompt_lookup_generate_step", longest):
            how[longest] = 3
    steps = prompt_lookup_generate_step(mx.array(prompt), model, **how, **options)
    try:
        for token, logprobs, drafted in steps:
            yield int(token), logprobs, drafted
    finally:
        steps.close()
