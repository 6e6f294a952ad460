"""Run the commands of mlx-lm with recorders in place of the functions that their options reach.

``main()`` is real, and so is all code between it and the generators of tokens. The generators are recorders: they keep
their arguments and generate one token.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx_lm.draft import NgramModTable
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance import FIXTURE

COMMANDS = ("generate", "chat", "benchmark", "server")
TOKEN = 92
Body = dict[str, Any]


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

    def __call__(self, logprobs: mx.array) -> mx.array:
        return mx.argmax(logprobs, axis=-1)


class Greedy:
    """Stands for the greedy sampler. It equals a result of the recorders that is greedy."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made)

    def __call__(self, logprobs: mx.array) -> mx.array:
        return mx.argmax(logprobs, axis=-1)


class Group:
    """A group of ``mx.distributed`` with ``size`` ranks, as seen by the first."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0


class Record:
    """The calls that were made while a command ran, and what it printed."""

    def __init__(self, bodies: Sequence[Body] = (), ranks: int = 1, template: bool = True) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.printed = ""
        self.ranks = ranks
        self._bodies, self._template = bodies, template

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
        from mlx_lm.utils import load

        model, tokenizer, config = load(str(FIXTURE), return_config=True)
        model.loaded_from = path_or_hf_repo or repo
        model.embed_inputs = lambda tokens, pixel_values: mx.array(np.concatenate(pixel_values))
        if not self._template:
            tokenizer.chat_template, tokenizer.default_chat_template = None, "default"
            tokenizer.has_chat_template = False
        self.note("tokenizer", it=tokenizer)
        return (model, tokenizer, config) if return_config else (model, tokenizer)

    def step(self, *, verifier: Any = None, drafter: Any = None, **arguments: Any) -> Iterator[tuple[Any, ...]]:
        """A step of plain decoding or of drafting. Drafting gets its options through the verifier and the drafter."""
        drafts = drafter is not None
        if drafts:
            cache = verifier.cache
            arguments |= verifier.quantize.keywords | self.drafting(drafter)
            arguments |= {"model": verifier.model, "margin": arguments["near_ties"].margin}
            arguments |= {"prompt_cache": cache, "max_kv_size": getattr(cache, "max_kv_size", None)}
            drafter.stats.forwards += 1
        self.note("step", **arguments)
        logprobs = mx.zeros(1024)
        return (token for token in [(TOKEN, logprobs, True) if drafts else (TOKEN, logprobs)])

    @staticmethod
    def drafting(drafter: Any) -> dict[str, Any]:
        """The options of a drafter, or an empty dict without one."""
        names = ("strategy", "num_draft_tokens", "costs") if drafter is not None else ()
        return {name: getattr(drafter, name, None) for name in names}

    def seed(self, seed: int) -> None:
        self.note("seed", seed=seed)

    def read_images(self, _: str, images: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        return "image", images

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions that make the results of the recorders, by the name of the recorded function."""
        from mlx_lm.models.cache import make_prompt_cache

        return {
            "load": self.load,
            "sharded_load": self.load,
            "make_sampler": lambda **arguments: Made(**arguments),
            "make_prompt_cache": lambda model, **arguments: Made(make_prompt_cache(model), **arguments),
            "load_prompt_cache": lambda file_name, **_: (
                Made([KVCache()], file_name=file_name),
                {"model": "m", "tokenizer_config": "{}"},
            ),
            "load_processor": lambda **_: self.read_images,
            "batch_generate": lambda **_: SimpleNamespace(
                stats=SimpleNamespace(prompt_tps=1.0, generation_tps=1.0, peak_memory=1.0)
            ),
            "mark_drafted": lambda text, from_draft: text,
            "generate_step": self.step,
            "draft_generate_step": self.step,
        }

    def patches(self, module: ModuleType) -> Iterator[Any]:
        """Patches that put recorders under the names that a module imported."""
        for name, answer in self.answers().items():
            if hasattr(module, name):
                yield patch.object(module, name, self.recorder(name, getattr(module, name), answer))
        if hasattr(module, "greedy_sampler"):
            yield patch.object(module, "greedy_sampler", Greedy())

    def everywhere(self) -> Iterator[Any]:
        """The patches that all commands need."""
        template = TokenizerWrapper.apply_chat_template

        def apply_chat_template(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.note("template", **kwargs)
            return template(tokenizer, *args, **kwargs)

        def open_image(path: str) -> Any:
            pixels = np.frombuffer(Path(path).read_bytes(), np.uint8)
            return SimpleNamespace(convert=lambda _: pixels)

        def save(table: NgramModTable, path: str) -> None:
            self.note("save", path=path)

        queries = iter(["Repeat this.", "q"])
        yield patch.object(NgramModTable, "save", save)
        yield patch.object(TokenizerWrapper, "apply_chat_template", apply_chat_template)
        # Where it is installed, other packages need the rest of it.
        image = importlib.import_module("PIL.Image") if find_spec("PIL") else SimpleNamespace()
        yield patch.object(image, "open", open_image, create=True)
        yield patch.dict(sys.modules, {} if find_spec("PIL") else {"PIL": SimpleNamespace(Image=image)})
        yield patch("builtins.input", lambda *_: next(queries))
        yield patch.object(mx.random, "seed", self.seed)
        if self.ranks > 1:
            yield patch.object(mx.distributed, "init", lambda: Group(self.ranks))

    def of_benchmark(self) -> Iterator[Any]:
        benchmark = module_of("benchmark")
        clock = SimpleNamespace(
            perf_counter=benchmark.time.perf_counter, sleep=lambda seconds: self.note("sleep", seconds=seconds)
        )
        yield patch.object(benchmark, "time", clock)

    def of_server(self) -> Iterator[Any]:
        server = module_of("server")
        record, bodies = self, self._bodies

        class BatchGenerator(server.BatchGenerator):  # type: ignore[misc, name-defined]
            def __init__(self, model: Any, **kwargs: Any) -> None:
                super().__init__(model, **kwargs)
                self.options = kwargs | {"model": model}
                record.note("batch", **kwargs)

            def insert_segments(self, segments: Any, samplers: Any, max_tokens: Any, **kwargs: Any) -> Any:
                drafts = Record.drafting(kwargs["planners"][0])
                record.note("step", sampler=samplers[0], max_tokens=max_tokens[0], **self.options, **drafts)
                return super().insert_segments(segments, samplers=samplers, max_tokens=[1], **kwargs)

        class LRUPromptCache(server.LRUPromptCache):  # type: ignore[misc, name-defined]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                record.note("prompt_cache", it=self)

            def trim_to(self, **kwargs: Any) -> None:
                record.note("trim_to", **kwargs)

        class HTTPServer:
            def __init__(self, address: Any, handler: Callable[..., Any]) -> None:
                record.note("http", address=address[0], port=address[1])
                self.handler = handler

            def serve_forever(self) -> None:
                for body in bodies:
                    connection = Connection(body)
                    self.handler(connection, ("127.0.0.1", 1), self)
                    record.note("answer", **connection.answer())
                raise KeyboardInterrupt

            def shutdown(self) -> None:
                pass

        serve, stop = server._run_http_server, server.ResponseGenerator.stop_and_join
        # If a thread takes too long, the server ends its process, and here that is the process of the tests.
        yield patch.object(server.ResponseGenerator, "stop_and_join", lambda generator, timeout=None: stop(generator))
        yield patch.object(server, "BatchGenerator", BatchGenerator)
        yield patch.object(server, "LRUPromptCache", LRUPromptCache)
        yield patch.object(server, "_run_http_server", lambda *args: serve(*args, server_class=HTTPServer))
        yield patch.object(server.APIHandler, "log_message", lambda *_: None)
        yield patch.object(server.logging, "basicConfig", lambda **kwargs: self.note("log", **kwargs))
        yield patch.object(server.signal, "signal")
        # It waits until its clients are told.
        yield patch.object(server.time, "sleep")


class Connection:
    """A connection with one request. It keeps the response."""

    def __init__(self, body: Body) -> None:
        content = json.dumps({"messages": [{"role": "user", "content": "Repeat this."}]} | body).encode()
        head = f"POST /v1/chat/completions HTTP/1.0\r\nOrigin: here\r\nContent-Length: {len(content)}\r\n\r\n"
        self._request, self._sent = io.BytesIO(head.encode() + content), b""

    def makefile(self, *_: Any) -> io.BytesIO:
        return self._request

    def recv(self, *_: Any) -> bytes:
        """The connection stays open, and no more data comes."""
        raise BlockingIOError

    def sendall(self, data: bytes) -> None:
        self._sent += data

    def answer(self) -> dict[str, Any]:
        head, content = self._sent.decode().split("\r\n\r\n", 1)
        return {"head": head, "status": int(head.split()[1]), "body": json.loads(content)}


def run_batch(**given: Any) -> Record:
    """Call batch_generate for two prompts with these arguments, and record the options of each."""
    generate, record = module_of("generate"), Record()

    class BatchGenerator(generate.BatchGenerator):  # type: ignore[misc, name-defined]
        def __init__(self, model: Any, **kwargs: Any) -> None:
            super().__init__(model, **kwargs)
            record.note("batch", **kwargs)

        def insert(self, *args: Any, planners: Any = None, **kwargs: Any) -> Any:
            uids = super().insert(*args, planners=planners, **kwargs)
            for planner in planners:
                record.note("step", **record.drafting(planner))
            return uids

    model, tokenizer = record.load()
    with patch.object(generate, "BatchGenerator", BatchGenerator):
        generate.batch_generate(model, tokenizer, [[TOKEN, 5], [TOKEN, 6]], max_tokens=1, **given)
    return record


def run(command: str, argv: Sequence[str], bodies: Sequence[Body] = ({},), **surroundings: Any) -> Record:
    """Run a command. The server also serves the requests."""
    record, out = Record(bodies, **surroundings), io.StringIO()
    with contextlib.ExitStack() as stack:
        for module in {module_of("generate"), module_of(command)}:
            for change in record.patches(module):
                stack.enter_context(change)
        extra: dict[str, Callable[[], Iterator[Any]]] = {"benchmark": record.of_benchmark, "server": record.of_server}
        for change in [*record.everywhere(), *extra.get(command, lambda: iter(()))()]:
            stack.enter_context(change)
        stack.enter_context(patch.object(sys, "argv", [f"mlx_lm.{command}", *argv]))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        module_of(command).main()
    record.printed = out.getvalue()
    return record
