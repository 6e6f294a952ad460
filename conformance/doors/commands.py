"""Run the commands of mlx-lm with recorders in place of the functions that their options reach.

``main()`` is real, and so is all code between it and what generates tokens: ``stream_generate`` and the
``BatchGenerator``, which take the options of drafting as one value. Both are recorders that keep their arguments. The
first answers with one token, the second fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from email.message import Message
from functools import cache, partial
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.response import addinfourl

import mlx.core as mx
import numpy as np
import requests
from mlx_lm.draft import DraftOptions, DraftStats, NgramModTable
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load

from conformance import FIXTURE

COMMANDS = ("generate", "chat", "benchmark", "server")
Body = dict[str, Any]
QUESTION = "Repeat this."
# The options that a strategy is made of.
MAKING = ("draft_type", "ngram_size", "ngram_mod_table", "draft_reference")


def module_of(command: str) -> ModuleType:
    # The package also has a function with the name generate.
    return importlib.import_module(f"mlx_lm.{command}")


class _Parsing(Exception):
    pass


def parser_of(command: str) -> argparse.ArgumentParser:
    """The argument parser of a command."""

    def parse_args(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise _Parsing(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        try:
            module_of(command).main()
        except _Parsing as parsing:
            parser: argparse.ArgumentParser = parsing.args[0]
            return parser
    raise AssertionError(f"mlx_lm.{command} parses nothing")


class Made(list[Any]):
    """The result of a recorder: a list, with the arguments of the call as attributes."""

    def __init__(self, items: Sequence[Any] = (), **arguments: Any) -> None:
        super().__init__(items)
        self.__dict__.update(arguments)


class Group(SimpleNamespace):
    """A group of ``mx.distributed`` with ``n`` ranks, as seen by the first."""

    def size(self) -> int:
        return int(self.n)

    def rank(self) -> int:
        return 0


def asked(draft: Any) -> DraftOptions:
    """The options of drafting, with those that its strategy was made of."""
    made = getattr(getattr(draft, "draft_strategy", None), "made_of", None)
    if made is not None:
        draft = replace(draft, draft_strategy=None, **{name: getattr(made, name) for name in MAKING})
    return draft or DraftOptions()


@cache
def fixture() -> tuple[Any, ...]:
    """The model, the tokenizer and the configuration. Callers must not change them."""
    return tuple(load(str(FIXTURE), return_config=True))


class Record:
    """The calls that were made while a command ran, and what it printed."""

    def __init__(self, bodies: Sequence[Body] = (), ranks: int = 1, template: bool = True) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.printed = ""
        self._ranks, self._bodies, self._template = ranks, bodies, template

    def note(self, name: str, **arguments: Any) -> None:
        self.calls.setdefault(name, []).append(arguments)

    def at(self, where: str) -> Any:
        """The value at a path of names in the last call, or None if there is none."""
        name, *path = where.split(".")
        found: Any = self.calls[name][-1] if name in self.calls else {}
        for part in path:
            # An mlx module is a dict that also has attributes.
            inside = isinstance(found, dict) and part in found
            found = found[part] if inside else getattr(found, part, None)
        return found

    def recorder(self, name: str, real: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            arguments |= arguments.pop("kwargs", {})
            self.note(name, **arguments)
            return answer(**arguments)

        return call

    def load(self, path_or_hf_repo: str = "", repo: str = "", return_config: bool = False, **_: Any) -> Any:
        model, tokenizer, config = copy(fixture()[0]), *deepcopy(fixture()[1:])
        model.loaded_from = path_or_hf_repo or repo
        model.embed_inputs = lambda tokens, pixel_values: mx.array(np.concatenate(pixel_values))
        if not self._template:
            tokenizer.chat_template, tokenizer.default_chat_template = None, "default"
            tokenizer.has_chat_template = False
        self.note("tokenizer", it=tokenizer)
        return (model, tokenizer, config) if return_config else (model, tokenizer)

    def step(self, *, draft: Any = None, **arguments: Any) -> Iterator[Any]:
        draft = asked(draft)
        self.note("step", draft=draft, **arguments)
        response = module_of("generate").GenerationResponse
        return iter([response("x", 92, mx.zeros(1024), bool(draft), 1, 1.0, 1, 1.0, 1.0, "length", DraftStats())])

    def batch(self, model: Any, **options: Any) -> Any:
        self.note("batch", **options)

        def insert(*prompts: Any, planners: Any, samplers: Any = (None,), **arguments: Any) -> None:
            most = arguments.get("max_tokens", [None])[0]
            for planner in planners:
                draft = getattr(planner, "asked", DraftOptions())
                self.note("step", model=model, sampler=samplers[0], draft=draft, **options | {"max_tokens": most})
            raise RuntimeError("recorded")

        return SimpleNamespace(insert=insert, insert_segments=insert, close=lambda: None)

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions that make the results of the recorders, by the name of the recorded function."""
        cached = {"model": "m", "tokenizer_config": "{}"}
        numbers = SimpleNamespace(prompt_tps=1.0, generation_tps=1.0, peak_memory=1.0)
        return {
            "load": self.load,
            "sharded_load": self.load,
            "make_sampler": lambda **arguments: SimpleNamespace(**arguments),
            "make_prompt_cache": lambda model, **arguments: Made(make_prompt_cache(model), **arguments),
            "load_prompt_cache": lambda file_name, **_: (Made([KVCache()], file_name=file_name), cached),
            "load_processor": lambda **_: lambda _, images: ("image", images),
            "make_opener": lambda **_: SimpleNamespace(open=lambda *_, **__: addinfourl(io.BytesIO(), Message(), "")),
            "batch_generate": lambda **_: SimpleNamespace(stats=numbers),
            "mark_drafted": lambda text, from_draft: text,
            "stream_generate": self.step,
        }

    def patches(self, module: ModuleType) -> Iterator[Any]:
        """Patches that put recorders under the names that a module imported."""
        for name, answer in self.answers().items():
            if hasattr(module, name):
                yield patch.object(module, name, self.recorder(name, getattr(module, name), answer))
        if hasattr(module, "BatchGenerator"):
            yield patch.object(module, "BatchGenerator", self.batch)

    def everywhere(self) -> Iterator[Any]:
        """The patches that all commands need."""
        template, strategy = TokenizerWrapper.apply_chat_template, DraftOptions.with_strategy
        planner, queries = DraftOptions.make_planner, iter([QUESTION, "q"])

        def apply_chat_template(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.note("template", **kwargs)
            return template(tokenizer, *args, **kwargs)

        def with_strategy(options: DraftOptions, *args: Any, **changes: Any) -> DraftOptions:
            made: Any = strategy(options, *args, **changes)
            given = {name: value for name, value in changes.items() if name != "vocab_size"}
            made.draft_strategy.made_of = replace(options, **given)
            return made

        def make_planner(options: DraftOptions, *args: Any) -> Any:
            made: Any = planner(options, *args)
            made.asked = asked(options)
            return made

        def open_image(path: str) -> Any:
            pixels = np.frombuffer(Path(path).read_bytes(), np.uint8)
            return SimpleNamespace(convert=lambda _: pixels)

        yield patch.object(DraftOptions, "with_strategy", with_strategy)
        yield patch.object(DraftOptions, "make_planner", make_planner)
        yield patch.object(NgramModTable, "save", lambda _, path: self.note("save", path=path))
        yield patch.object(TokenizerWrapper, "apply_chat_template", apply_chat_template)
        # Where it is installed, other packages need the rest of it.
        image = importlib.import_module("PIL.Image") if find_spec("PIL") else SimpleNamespace()
        yield patch.object(image, "open", open_image, create=True)
        yield patch.dict(sys.modules, {} if find_spec("PIL") else {"PIL": SimpleNamespace(Image=image)})
        yield patch("builtins.input", lambda *_: next(queries))
        yield patch.object(mx.random, "seed", lambda seed: self.note("seed", seed=seed))
        # The server waits until its clients are told.
        yield patch.object(time, "sleep", lambda seconds: self.note("sleep", seconds=seconds))
        if self._ranks > 1:
            yield patch.object(mx.distributed, "init", lambda: Group(n=self._ranks))

    def of_server(self) -> Iterator[Any]:
        server = module_of("server")
        caches = server.LRUPromptCache

        def make_caches(*args: Any, **kwargs: Any) -> Any:
            made = caches(*args, **kwargs)
            self.note("prompt_cache", it=made)
            return made

        def serve(host: str, port: int, generator: Any) -> None:
            self.note("http", host=host, port=port)
            try:
                with ThreadingHTTPServer(("127.0.0.1", 0), partial(server.APIHandler, generator)) as httpd:
                    # It looks this often whether it has to end.
                    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
                    for body in self._bodies:
                        body = {"messages": [{"role": "user", "content": QUESTION}]} | body
                        url = f"http://127.0.0.1:{httpd.server_port}/v1/chat/completions"
                        answer = requests.post(url, json=body, headers={"Origin": "here"}, timeout=60)
                        self.note(
                            "answer", status=answer.status_code, origin=answer.headers["Access-Control-Allow-Origin"]
                        )
                    httpd.shutdown()
            finally:
                generator.stop_and_join()

        yield patch.object(server, "LRUPromptCache", make_caches)
        yield patch.object(server, "_run_http_server", serve)
        yield patch.object(server.APIHandler, "log_message", lambda *_: None)
        yield patch.object(server.logging, "basicConfig", lambda **kwargs: self.note("log", **kwargs))
        yield patch.object(server.signal, "signal")


@contextlib.contextmanager
def recording(record: Record, command: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in {module_of("generate"), module_of(command)}:
            for change in record.patches(module):
                stack.enter_context(change)
        for change in [*record.everywhere(), *(record.of_server() if command == "server" else ())]:
            stack.enter_context(change)
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        yield


def run_batch(**given: Any) -> Record:
    """Call batch_generate for two prompts with these arguments, and record the options of each."""
    record, batch_generate = Record(), module_of("generate").batch_generate
    with recording(record, "generate"), contextlib.suppress(RuntimeError):
        batch_generate(*record.load("m"), [[92, 5], [92, 6]], **given)
    return record


def run(command: str, argv: Sequence[str], bodies: Sequence[Body] = ({},), **surroundings: Any) -> Record:
    """Run a command. The server also serves the requests."""
    record, out = Record(bodies, **surroundings), io.StringIO()
    argv = [f"mlx_lm.{command}", *argv]
    with recording(record, command), patch.object(sys, "argv", argv), contextlib.redirect_stdout(out):
        module_of(command).main()
    record.printed = out.getvalue()
    return record
