"""Run a command of mlx-lm as a user does, up to what generates tokens, and record what arrives there.

``main()`` is real, and so is all code up to ``stream_generate`` and the ``BatchGenerator``. The first answers with one
token, the second fails. What they are called with is noted, and so are the calls of a few functions on the way.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm import grammar
from mlx_lm.draft import DraftOptions, DraftStats, NgramModTable
from mlx_lm.utils import load

from conformance import FIXTURE
from conformance.adapters import by_name as by_name
from conformance.adapters import module_of as module_of
from conformance.adapters import options_of as options_of
from conformance.doors.server.process import Body, inside

COMMANDS = ("generate", "chat", "server", "benchmark")
QUESTION = "Repeat this."


@cache
def _fixture() -> tuple[Any, ...]:
    """The model, the tokenizer and the configuration. Callers must not change them."""
    return tuple(load(str(FIXTURE), return_config=True))


class Record:
    """The calls that were made while a command ran, and what it printed."""

    def __init__(self) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}

    def note(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        self.calls.setdefault(name, []).append(arguments)
        return arguments

    def at(self, place: str) -> Any:
        """The value at a path of names in the last call of a function, or None. ``A ~ B`` is whether B is in A."""
        place, _, part = place.partition(" ~ ")
        name, *path = place.split(".")
        found: Any = self.calls.get(name, [{}])[-1]
        for step in path:
            # An mlx module is a dict that also has attributes.
            found = found[step] if isinstance(found, dict) and step in found else getattr(found, step, None)
        return part in found if part else found

    def stubbed(self, of: Any, name: str, answer: Callable[..., Any] | None) -> Any:
        """Note how a function is called. Its result is that of another function, or its own."""
        real = getattr(of, name)
        signature = inspect.signature(real)

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            noted = self.note(name, **arguments | arguments.pop("kwargs", {}))
            result = answer(**noted) if answer else real(*args, **kwargs)
            noted["result"] = result
            return result

        return patch.object(of, name, call)

    def load(self, path_or_hf_repo: str = "", repo: str = "", return_config: bool = False, **_: Any) -> Any:
        model, tokenizer, config = copy(_fixture()[0]), *deepcopy(_fixture()[1:])
        model.loaded_from = path_or_hf_repo or repo
        self.note("tokenizer", it=tokenizer)
        return (model, tokenizer, config) if return_config else (model, tokenizer)

    def step(self, model: Any, *_: Any, draft: Any = None, **arguments: Any) -> Iterator[Any]:
        """Takes the place of ``stream_generate``."""
        asked, before = draft or DraftOptions(), self.calls.get("step", [{}])[-1].get("draft")
        reference = asked.draft_reference
        if isinstance(reference, list):
            reference = self.at("tokenizer.it").decode(reference)
        # Whether this request has the memory of the one before.
        shares = before is not None and before.ngram_mod_table is asked.ngram_mod_table is not None
        self.note("step", model=model, draft=asked, reference=reference, shares=shares, **arguments)
        response = module_of("generate").GenerationResponse
        return iter([response("x", 92, mx.zeros(1024), bool(draft), 1, 1.0, 1, 1.0, 1.0, "length", DraftStats())])

    def batch(self, model: Any, **options: Any) -> Any:
        self.note("batch", **options)

        def insert(*prompts: Any, planners: Any, samplers: Any = (None,), **arguments: Any) -> None:
            own = {"max_tokens": arguments.get("max_tokens", [None])[0], "sampler": samplers[0]}
            for planner in planners:
                self.step(model, draft=planner and planner.asked, **options | own)
            raise RuntimeError("recorded")

        return SimpleNamespace(insert=insert, insert_segments=insert, close=lambda: None)

    @contextlib.contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Record while a command runs."""
        cached = {"model": "m", "tokenizer_config": "{}"}
        queries = iter([QUESTION, "q"])
        # What the modules of commands import: what it answers, or None for its own answer.
        answers: dict[str, Callable[..., Any] | None] = {
            "load": self.load,
            "sharded_load": self.load,
            "make_sampler": lambda **arguments: SimpleNamespace(**arguments),
            "make_prompt_cache": None,
            "load_prompt_cache": lambda file_name, **_: (f"read from {file_name}", cached),
            "mark_drafted": None,
            "LRUPromptCache": None,
        }
        patches: list[Any] = [
            # The strategy is made of the options, which are the record.
            self.stubbed(DraftOptions, "with_strategy", lambda self, **_: self),
            self.stubbed(DraftOptions, "make_planner", lambda self, **_: SimpleNamespace(asked=self, stats=None)),
            self.stubbed(NgramModTable, "save", lambda **_: None),
            self.stubbed(grammar, "compile_grammar", lambda **_: None),
            patch("builtins.input", lambda *_: next(queries)),
            warnings.catch_warnings(action="ignore"),
        ]
        for module in {module_of("generate"), module_of(command)}:
            patches += [self.stubbed(module, name, answers[name]) for name in answers.keys() & vars(module).keys()]
            fakes = {"stream_generate": self.step, "BatchGenerator": self.batch}
            patches += [patch.object(module, name, fake) for name, fake in fakes.items() if hasattr(module, name)]
        with contextlib.ExitStack() as stack:
            for change in patches:
                stack.enter_context(change)
            yield


def run(command: str, argv: Sequence[str], bodies: Sequence[Body] = ({},)) -> Record:
    """Run a command. The server also answers the requests."""
    record, out = Record(), io.StringIO()
    with record.of(command), contextlib.redirect_stdout(out):
        if command == "server":
            with inside(*argv) as server:
                for body in bodies:
                    server.post({"messages": [{"role": "user", "content": QUESTION}]} | body)
        else:
            with patch.object(sys, "argv", [f"mlx_lm.{command}", *argv]):
                module_of(command).main()
    record.note("printed", text=out.getvalue())
    return record
