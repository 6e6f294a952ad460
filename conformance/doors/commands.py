"""Run a command of mlx-lm as a user does, up to what generates tokens, and record what arrives there.

``main()`` is real, and so is all code up to ``stream_generate`` and the ``BatchGenerator``. The first answers with one
token, the second fails. What they are called with is noted.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft import DraftOptions, DraftStats, NgramModTable
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load as load_model

from conformance import FIXTURE
from conformance.adapters import module_of
from conformance.doors.server.process import Body, inside

COMMANDS = ("generate", "chat", "server", "benchmark")
QUESTION = "Repeat this."


@cache
def _fixture() -> tuple[Any, ...]:
    """The model, the tokenizer and the configuration. Callers must not change them."""
    return tuple(load_model(str(FIXTURE), return_config=True))


def load(path_or_hf_repo: str = "", repo: str = "", return_config: bool = False, **_: Any) -> Any:
    model, tokenizer, config = copy(_fixture()[0]), *deepcopy(_fixture()[1:])
    model.loaded_from = path_or_hf_repo or repo
    return (model, tokenizer, config) if return_config else (model, tokenizer)


def sampler(*args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(**signature(make_sampler).bind(*args, **kwargs).arguments)


class Record:
    """What generates tokens was called with last."""

    def __init__(self) -> None:
        self.step: dict[str, Any] = {}

    def at(self, place: str) -> Any:
        """The value at a path of names, or None."""
        found: Any = self.step
        for name in place.split("."):
            # An mlx module is a dict that also has attributes.
            found = found[name] if isinstance(found, dict) and name in found else getattr(found, name, None)
        return found

    def note(self, model: Any, draft: Any = None, **arguments: Any) -> None:
        asked = draft or DraftOptions()
        reference = asked.draft_reference
        if isinstance(reference, list):
            reference = _fixture()[1].decode(reference)
        self.step = {"model": model, "draft": asked, "reference": reference, **arguments}

    def stream(self, model: Any, *_: Any, draft: Any = None, **arguments: Any) -> Iterator[Any]:
        """Takes the place of ``stream_generate``."""
        self.note(model, draft, **arguments)
        response = module_of("generate").GenerationResponse
        return iter([response("x", 92, mx.zeros(1024), bool(draft), 1, 1.0, 1, 1.0, 1.0, "length", DraftStats())])

    def batch(self, model: Any, **options: Any) -> Any:
        """Takes the place of a ``BatchGenerator``."""

        def insert(*prompts: Any, planners: Any, samplers: Any = (None,), **arguments: Any) -> None:
            own = {"max_tokens": arguments.get("max_tokens", [None])[0], "sampler": samplers[0]}
            for planner in planners:
                self.note(model, planner and planner.asked, **options | own)
            raise RuntimeError("recorded")

        return SimpleNamespace(insert=insert, insert_segments=insert, close=lambda: None)

    @contextlib.contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Record while a command runs."""
        queries = iter([QUESTION, "q"])
        fakes: dict[str, Any] = {"load": load, "sharded_load": load, "make_sampler": sampler}
        fakes |= {"stream_generate": self.stream, "BatchGenerator": self.batch}
        patches: list[Any] = [
            # The strategy is made of the options, which are the record.
            patch.object(DraftOptions, "with_strategy", lambda one, *_, **__: one),
            patch.object(
                DraftOptions, "make_planner", lambda asked, *_, **__: SimpleNamespace(asked=asked, stats=None)
            ),
            patch.object(NgramModTable, "save", lambda *_, **__: None),
            patch("builtins.input", lambda *_: next(queries)),
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
        ]
        for module in {module_of("generate"), module_of(command)}:
            patches += [patch.object(module, name, fakes[name]) for name in fakes.keys() & vars(module).keys()]
        with contextlib.ExitStack() as stack:
            for change in patches:
                stack.enter_context(change)
            yield


def run(command: str, argv: Sequence[str], body: Body) -> Record:
    """Run a command. The server also answers a request."""
    record = Record()
    with record.of(command):
        if command == "server":
            with inside(*argv) as server:
                server.post({"messages": [{"role": "user", "content": QUESTION}]} | body)
        else:
            with patch.object(sys, "argv", [f"mlx_lm.{command}", *argv]):
                module_of(command).main()
    return record
