"""Published experiments: stream_generate(prompt_lookup_num_tokens= or draft_type=), and a generator with a backend."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx

from conformance.adapters import DECODING, Drafts, arguments_of
from conformance.adapters.stock import can_trim, restore, snapshot, trim

__all__ = ["can_trim", "restore", "snapshot", "trim"]

_GENERATOR = "prompt_lookup_generate_step"
_TAKEN, _OF_GENERATOR = arguments_of("stream_generate"), arguments_of(_GENERATOR)
_NGRAMS: dict[str, Any] = {"num_draft_tokens": 3, "ngram_size": 3, "disable_adaptive_gate": True}


def _backends() -> tuple[str, ...]:
    """The names in the type of the argument, or else its default."""
    function = getattr(import_module("mlx_lm.generate"), _GENERATOR)
    annotation = typing.get_type_hints(function).get("backend")
    listed = [name for part in (annotation, *typing.get_args(annotation)) for name in typing.get_args(part)]
    default = inspect.signature(function).parameters["backend"].default
    return tuple(name for name in listed if isinstance(name, str)) or (default if isinstance(default, str) else "",)


# The ways to draft of each of the two, with their arguments.
_STREAMS: dict[str, dict[str, Any]] = {}
if "prompt_lookup_num_tokens" in _TAKEN:
    _STREAMS["lookup"] = {"prompt_lookup_num_tokens": 3}
if "draft_type" in _TAKEN:
    _STREAMS |= {name: {"draft_type": name} | _NGRAMS for name in ("ngram-simple", "ngram-mod")}
_STEPS: dict[str, dict[str, Any]] = {}
if "backend" in _OF_GENERATOR:
    _longest = dict.fromkeys({"num_draft_tokens", "prompt_lookup_num_tokens"} & _OF_GENERATOR, 3)
    _STEPS = {name: ({"backend": name} if name else {}) | _longest for name in _backends()}

DRAFTERS = tuple(_STREAMS | _STEPS)
OPTIONS = DECODING & (_TAKEN if _STREAMS else DECODING) & (_OF_GENERATOR if _STEPS else DECODING)
_SIMPLE = ["--draft-type", "ngram-simple", "--num-draft-tokens", "4", "--ngram-size", "3", "--disable-adaptive-gate"]
COMMANDS = dict.fromkeys(("generate", "chat", "server"), _SIMPLE)
if "lookup" in _STREAMS or _STEPS:
    COMMANDS["generate"] = ["--prompt-lookup-num-tokens", "4"]
REQUEST = {"draft_type": "ngram-simple"} | _NGRAMS if "ngram-simple" in _STREAMS else {}


def fits() -> bool:
    # The series takes all of them, and has an adapter of its own.
    return bool(DRAFTERS) and find_spec("mlx_lm.draft") is None


def decode(model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Iterator[Any]:
    generate: Any = import_module("mlx_lm.generate")
    if drafts.name in _STEPS:
        steps = getattr(generate, _GENERATOR)(mx.array(prompt), model, **_STEPS[drafts.name], **options)
        with closing(steps):
            for token, logprobs, drafted in steps:
                yield int(token), logprobs, drafted
        return
    # No end token and no text.
    tokenizer = MagicMock(spec=generate.TokenizerWrapper, eos_token_ids=set(), detokenizer=MagicMock(last_segment=""))
    responses = generate.stream_generate(model, tokenizer, mx.array(prompt), **_STREAMS[drafts.name], **options)
    with closing(responses):
        for response in responses:
            yield response.token, response.logprobs, response.from_draft
