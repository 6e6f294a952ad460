"""Run a command of mlx-lm as a user does, up to what generates tokens, and record what arrives there.

``main()`` is real, and so is all code up to ``stream_generate`` and the ``BatchGenerator``. The first answers with one
token, the second fails. What they are called with is noted, and so are the calls of a few functions on the way.
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
from functools import cache, partial
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import requests
from mlx_lm.draft import DraftOptions, DraftStats, NgramModTable
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load

from conformance import FIXTURE

COMMANDS = ("generate", "chat", "server", "benchmark")
Body = dict[str, Any]
QUESTION = "Repeat this."


def module_of(command: str) -> ModuleType:
    # The package also has a function with the name generate.
    return importlib.import_module(f"mlx_lm.{command}")


def options_of(command: str) -> dict[str, argparse.Action]:
    """The options of a command, by their long names."""
    reading = patch.object(argparse.ArgumentParser, "parse_args", autospec=True, side_effect=SystemExit)
    with reading as parse_args, contextlib.suppress(SystemExit):
        module_of(command).main()
    return by_name(parse_args.call_args.args[0])


def by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {max(action.option_strings, key=len): action for action in parser._actions if action.dest != "help"}


class Group(SimpleNamespace):
    """A group of ``mx.distributed`` with ``n`` ranks, as seen by the first."""

    def size(self) -> int:
        return int(self.n)

    def rank(self) -> int:
        return 0


@cache
def _fixture() -> tuple[Any, ...]:
    """The model, the tokenizer and the configuration. Callers must not change them."""
    return tuple(load(str(FIXTURE), return_config=True))


class Record:
    """The calls that were made while a command ran, and what it printed."""

    def __init__(self, bodies: Sequence[Body] = (), ranks: int = 1, template: bool = True) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.printed = ""
        self._ranks, self._bodies, self._template = ranks, bodies, template

    def note(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        self.calls.setdefault(name, []).append(arguments)
        return arguments

    def at(self, place: str) -> Any:
        """The value at a path of names in the last call of a function, or None. ``A ~ B`` is whether B is in A."""
        place, _, part = place.partition(" ~ ")
        name, *path = place.split(".")
        found = PLACES[name](self) if name in PLACES else self.calls.get(name, [{}])[-1]
        for step in path:
            # An mlx module is a dict that also has attributes.
            inside = isinstance(found, dict) and step in found
            found = found[step] if inside else getattr(found, step, None)
        return part in found if part else found

    def stub(self, name: str, real: Callable[..., Any], answer: Callable[..., Any] | None) -> Callable[..., Any]:
        """A function that notes how it is called. Its result is that of another function, or of the real one."""
        signature = inspect.signature(real)

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            noted = self.note(name, **arguments | arguments.pop("kwargs", {}))
            result = answer(**noted) if answer else real(*args, **kwargs)
            noted["result"] = result
            return result

        return call

    def load(self, path_or_hf_repo: str = "", repo: str = "", return_config: bool = False, **_: Any) -> Any:
        model, tokenizer, config = copy(_fixture()[0]), *deepcopy(_fixture()[1:])
        model.loaded_from = path_or_hf_repo or repo
        model.embed_inputs = lambda tokens, pixel_values: np.concatenate(pixel_values).tolist()
        if not self._template:
            tokenizer.chat_template, tokenizer.default_chat_template = None, "default"
            tokenizer.has_chat_template = False
        self.note("tokenizer", it=tokenizer)
        return (model, tokenizer, config) if return_config else (model, tokenizer)

    def step(self, draft: Any = None, **arguments: Any) -> Iterator[Any]:
        self.note("step", draft=draft or DraftOptions(), **arguments)
        response = module_of("generate").GenerationResponse
        return iter([response("x", 92, mx.zeros(1024), bool(draft), 1, 1.0, 1, 1.0, 1.0, "length", DraftStats())])

    def batch(self, model: Any, **options: Any) -> Any:
        self.note("batch", **options)

        def insert(*prompts: Any, planners: Any, samplers: Any = (None,), **arguments: Any) -> None:
            own = {"max_tokens": arguments.get("max_tokens", [None])[0], "sampler": samplers[0]}
            for planner in planners:
                self.step(planner and planner.asked, model=model, **options | own)
            raise RuntimeError("recorded")

        return SimpleNamespace(insert=insert, insert_segments=insert, close=lambda: None)

    def serve(self, host: str, port: int, generator: Any) -> None:
        """Send the requests to the handler of the server."""
        self.note("http", host=host, port=port)
        handler = partial(module_of("server").APIHandler, generator)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd, contextlib.ExitStack() as ends:
            ends.callback(generator.stop_and_join)
            ends.callback(httpd.shutdown)
            # It looks this often whether it has to end.
            threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
            url = f"http://127.0.0.1:{httpd.server_port}/v1/chat/completions"
            for body in self._bodies:
                body = {"messages": [{"role": "user", "content": QUESTION}]} | body
                answer = requests.post(url, json=body, headers={"Origin": "here"}, timeout=60)
                self.note("answer", origin=answer.headers["Access-Control-Allow-Origin"])

    def in_module(self, module: ModuleType) -> Iterator[Any]:
        """Patches of the names that a module imported."""
        numbers = SimpleNamespace(prompt_tps=1.0, generation_tps=1.0, peak_memory=1.0)
        cached = {"model": "m", "tokenizer_config": "{}"}
        answers: dict[str, Callable[..., Any] | None] = {
            "load": self.load,
            "sharded_load": self.load,
            "make_sampler": lambda **arguments: SimpleNamespace(**arguments),
            "make_prompt_cache": None,
            "load_prompt_cache": lambda file_name, **_: (f"read from {file_name}", cached),
            "load_processor": lambda **_: lambda _, images: ("image", images),
            "make_opener": None,
            "mark_drafted": None,
            "LRUPromptCache": None,
            "batch_generate": lambda **_: SimpleNamespace(stats=numbers),
        }
        for name in answers.keys() & vars(module).keys():
            yield patch.object(module, name, self.stub(name, getattr(module, name), answers[name]))
        for name, fake in {"stream_generate": self.stream, "BatchGenerator": self.batch}.items():
            if hasattr(module, name):
                yield patch.object(module, name, fake)

    def stream(self, model: Any, tokenizer: Any, prompt: Any, **arguments: Any) -> Iterator[Any]:
        return self.step(model=model, prompt=prompt, **arguments)

    def everywhere(self) -> Iterator[Any]:
        """The patches that all commands need."""
        queries = iter([QUESTION, "q"])

        def open_image(path: str) -> Any:
            return SimpleNamespace(convert=lambda _: np.frombuffer(Path(path).read_bytes(), np.uint8))

        for of, name, answer in (
            # The strategy is made of the options, which are the record.
            (DraftOptions, "with_strategy", lambda self, **_: self),
            (DraftOptions, "make_planner", lambda self, **_: SimpleNamespace(asked=self, stats=None)),
            (NgramModTable, "save", lambda **_: None),
            (TokenizerWrapper, "apply_chat_template", None),
        ):
            yield patch.object(of, name, self.stub(name, getattr(of, name), answer))
        # Where it is installed, other packages need the rest of it.
        pillow = SimpleNamespace(Image=SimpleNamespace(open=None))
        yield patch.dict(sys.modules, {} if find_spec("PIL") else {"PIL": pillow})
        yield patch("PIL.Image.open", open_image)
        yield patch("builtins.input", lambda *_: next(queries))
        yield patch.object(mx.random, "seed", lambda seed: self.note("seed", seed=seed))
        # The server waits until its clients are told.
        yield patch.object(time, "sleep", lambda seconds: self.note("sleep", seconds=seconds))
        if self._ranks > 1:
            yield patch.object(mx.distributed, "init", lambda: Group(n=self._ranks))

    def in_server(self) -> Iterator[Any]:
        server = module_of("server")
        yield patch.object(server, "_run_http_server", self.serve)
        yield patch.object(server.APIHandler, "log_message", lambda *_: None)
        yield patch.object(server.logging, "basicConfig", lambda **kwargs: self.note("log", **kwargs))
        yield patch.object(server.signal, "signal")

    @contextlib.contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Record while a command runs."""
        patches = [*self.everywhere(), *(self.in_server() if command == "server" else ())]
        for module in {module_of("generate"), module_of(command)}:
            patches += self.in_module(module)
        with contextlib.ExitStack() as stack:
            for change in patches:
                stack.enter_context(change)
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            yield


def _reference(record: Record) -> Any:
    found = record.at("step.draft.draft_reference")
    return record.at("tokenizer.it").decode(found) if isinstance(found, list) else found


def _shares(record: Record) -> bool:
    """Whether two requests have one memory."""
    first, second = [call["draft"].ngram_mod_table for call in record.calls["step"]][-2:]
    return first is second is not None


# What is not the argument of one call.
PLACES: dict[str, Callable[[Record], Any]] = {
    "text": lambda record: record.at("tokenizer.it").decode(record.at("step.prompt")),
    "ends": lambda record: [record.at("tokenizer.it").decode([t]) for t in record.at("tokenizer.it").eos_token_ids],
    "pixels": lambda record: record.at("step.input_embeddings"),
    "printed": lambda record: record.printed,
    "reference": _reference,
    "shares": _shares,
    "steps": lambda record: len(record.calls["step"]),
    "prompt": lambda record: len(record.at("step.prompt")),
    "prompts": lambda record: len(record.at("batch_generate.prompts") or ()),
}


def run(command: str, argv: Sequence[str], bodies: Sequence[Body] = ({},), **surroundings: Any) -> Record:
    """Run a command. The server also serves the requests."""
    record, out = Record(bodies, **surroundings), io.StringIO()
    argv = [f"mlx_lm.{command}", *argv]
    with record.of(command), patch.object(sys, "argv", argv), contextlib.redirect_stdout(out):
        module_of(command).main()
    record.printed = out.getvalue()
    return record


def run_batch(**given: Any) -> Record:
    """Call batch_generate for two prompts with these arguments."""
    record, batch_generate = Record(), module_of("generate").batch_generate
    with record.of("generate"), contextlib.suppress(RuntimeError):
        batch_generate(*record.load("m"), [[92, 5], [92, 6]], **given)
    return record
