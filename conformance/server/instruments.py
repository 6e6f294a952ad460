"""What makes things visible or slow in a server. None of it is a fault."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import count, islice
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft.options import DraftOptions
from mlx_lm.models.cache import LRUPromptCache

from conformance.doors.server.process import Body, Client, Inside
from conformance.doors.server.requests import Request, Right
from conformance.oracle.findings import broken

server: Any = import_module("mlx_lm.server")
GENERATE: Any = import_module("mlx_lm.generate")
llama: Any = import_module("mlx_lm.models.llama")
# In seconds. A server has to stop sooner, even during work that takes far longer.
SOON, TOO_LONG = 20.0, 600.0


def save_often() -> None:
    """The server saves the shared memory ten times a second."""
    server.SAVE_INTERVAL = 0.1


def late(owner: Any, name: str, seconds: float, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    call = getattr(owner, name)

    def call_late(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            time.sleep(seconds)
        return call(*args, **kwargs)

    setattr(owner, name, call_late)


def load_slowly() -> None:
    """Loading a model takes longer than a server may take to stop."""
    late(server, "load", TOO_LONG)


def prefill_slowly() -> None:
    """Each chunk of a prompt takes two seconds."""
    late(llama.Model, "__call__", 2.0, lambda _, inputs, *args, **kwargs: inputs.shape[1] > 1)


def wait_for_rest(one: Inside) -> None:
    """Wait until the generation thread has nothing to do, and free what nobody holds."""
    idle, generator = threading.Event(), one.generator
    wait = generator._next_request

    def wait_and_tell(timeout: float | None = None) -> Any:
        request = wait(timeout)
        # It waits for a request only where it has none.
        if request is None and timeout:
            idle.set()
        return request

    generator._next_request = wait_and_tell
    assert idle.wait(one.timeout), "the server is never at rest"
    generator._next_request = wait
    gc.collect()
    mx.synchronize()


def counters(server: Client) -> dict[str, int]:
    """The counters of /metrics, which has the format of Prometheus."""
    page = server.get("/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    counter = r"^# HELP mlx_lm_(\w+)_total \S.*\n# TYPE mlx_lm_\1_total counter\nmlx_lm_\1_total (\d+)$"
    found = re.findall(counter, page.text, re.MULTILINE)
    assert 3 * len(found) == len(page.text.splitlines()), page.text
    return {name: int(value) for name, value in found}


# The most steps of a batch that a request may wait for: far less than a long answer takes.
STEPS = 900


@contextmanager
def beside(server: Client, long: Request, right: Right) -> Iterator[None]:
    """What is asked beside a long answer does not wait for it, and leaves it as it is."""
    before = counters(server)["batch_steps"]
    with closing(server.pieces(long.body | long.draft, long.path)) as pieces:
        text = next(pieces)
        yield
        if (steps := counters(server)["batch_steps"] - before) > STEPS:
            broken(f"who came waited for {steps} steps of a long answer", str(long))
        # All that has come, which a step gives two tokens of at most, and some more.
        text += "".join(islice(pieces, 2 * steps + 50))
    whole = right(long.but(max_tokens=300)).text
    n = min(len(text), len(whole))
    if text[:n] != whole[:n]:
        broken(f"a long answer is {text[:n]!r} instead of {whole[:n]!r}", str(long))


class Stillness:
    """The most passes, and steps of other prompts, between two responses of the batch to one request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes, self.worst, self.in_prompt = [0, 0], [0, 0], False
        self.seen: dict[Any, list[int]] = {}
        call, prompt, step = llama.Model.__call__, GENERATE.PromptProcessingBatch.prompt, server.BatchGenerator.next

        def call_and_count(one: Any, *args: Any, **kwargs: Any) -> Any:
            # The call that finds the size of the vocabulary is never computed.
            self.passes[self.in_prompt] += sys._getframe(1).f_code.co_name != "vocab_size_of"
            return call(one, *args, **kwargs)

        def prompt_apart(one: Any, tokens: Any) -> None:
            self.in_prompt = True
            prompt(one, tokens)
            self.in_prompt = False

        def step_and_look(one: Any) -> Any:
            prompts, answers = step(one)
            for uid in {(one, answer.uid) for answer in answers}:
                then = self.seen.get(uid, self.passes)
                still = [now - before for now, before in zip(self.passes, then, strict=True)]
                self.worst = list(map(max, still, self.worst))
                self.seen[uid] = list(self.passes)
            return prompts, answers

        monkeypatch.setattr(llama.Model, "__call__", call_and_count)
        monkeypatch.setattr(GENERATE.PromptProcessingBatch, "prompt", prompt_apart)
        monkeypatch.setattr(server.BatchGenerator, "next", step_and_look)

    def check(self, most: tuple[int, int]) -> None:
        assert self.seen, "nothing was decoded in a batch"
        for n, limit, what in zip(self.worst, most, ("passes", "steps of other prompts"), strict=True):
            if n > limit:
                broken(f"a stream stood still for {n} {what}, and {limit} are the most")


# The parts of a request that can fail, and the fields of a request that has them.
PARTS: dict[str, Body] = {
    **{what: {} for what in ("strategy", "pass", "fetch", "join", "store")},
    "sampler": {"temperature": 0.5},
    "processor": {"repetition_penalty": 1.5},
    "format": {"logprobs": True, "top_logprobs": 7},
}


def raise_in_the_next(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part of the next request raise: at once, or what is made for it in its third call."""
    error = ZeroDivisionError(f"the {what} raises")

    def fail(function: Callable[..., Any]) -> Any:
        calls = count(1)

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == 3:
                raise error
            return function(*args, **kwargs)

        return call

    def strategy(made: Any) -> Any:
        made.propose = fail(made.propose)
        return made

    def network(made: Any) -> Any:
        monkeypatch.setattr(llama.Model, "__call__", fail(llama.Model.__call__))
        return made

    owner, name, changed = {
        "strategy": (DraftOptions, "make_strategy", strategy),
        "sampler": (server, "make_sampler", fail),
        "processor": (server, "make_logits_processors", lambda made: list(map(fail, made))),
        "pass": (server, "make_logits_processors", network),
        "format": (server, "_format_top_logprobs", None),
        "fetch": (LRUPromptCache, "fetch_nearest_cache", None),
        "join": (server.BatchGenerator, "insert_segments", None),
        "store": (LRUPromptCache, "insert_cache", None),
    }[what]
    make = getattr(owner, name)

    def once(*args: Any, **kwargs: Any) -> Any:
        if what == "format" and args[1] <= 0:
            # Of another request.
            return make(*args, **kwargs)
        monkeypatch.setattr(owner, name, make)
        if changed is None:
            raise error
        return changed(make(*args, **kwargs))

    monkeypatch.setattr(owner, name, once)
