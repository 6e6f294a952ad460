"""What makes things visible or slow in a server. None of it is a fault."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any

import mlx.core as mx
import pytest

from conformance.doors.server.process import Body, Client, Inside
from conformance.oracle.findings import broken

server: Any = import_module("mlx_lm.server")
GENERATE: Any = import_module("mlx_lm.generate")
llama: Any = import_module("mlx_lm.models.llama")
# In seconds. A server has to stop sooner, even during work that takes far longer.
SOON, TOO_LONG = 20.0, 600.0


def save_often() -> None:
    """The server saves the shared memory ten times a second."""
    server.SAVE_INTERVAL = 0.1


def load_slowly() -> None:
    """Loading a model takes longer than a server may take to stop."""
    load = server.load

    def load_late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(TOO_LONG)
        return load(*args, **kwargs)

    server.load = load_late


def prefill_slowly() -> None:
    """Each chunk of a prompt takes two seconds."""
    call = llama.Model.__call__

    def call_late(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inputs.shape[1] > 1:
            time.sleep(2)
        return call(self, inputs, *args, **kwargs)

    llama.Model.__call__ = call_late


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


# The part that fails, and the field of a request that asks for this.
FAILING: dict[str, Body] = {
    "strategy": {"draft_type": "suffix", "num_draft_tokens": 13},
    "sampler": {"temperature": 0.125},
    "processor": {"repetition_penalty": 1.125},
    "format": {"logprobs": True, "top_logprobs": 7},
    "pass": {"presence_penalty": 0.125},
}


def third_raises(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    calls = count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 3:
            raise ZeroDivisionError(f"the {what} raises")
        return function(*args, **kwargs)

    return call


def raise_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part of a request raise, if the request is the one of ``FAILING``."""

    def fail(function: Callable[..., Any]) -> Any:
        return third_raises(what, function)

    def strategy(made: Any) -> Any:
        made.propose = fail(made.propose)
        return made

    def network(made: Any) -> Any:
        monkeypatch.setattr(llama.Model, "__call__", fail(llama.Model.__call__))
        return made

    owner, name, changed = {
        "strategy": (import_module("mlx_lm.draft.options").DraftOptions, "make_strategy", strategy),
        "sampler": (server, "make_sampler", fail),
        "processor": (server, "make_logits_processors", lambda made: list(map(fail, made))),
        "format": (server, "_format_top_logprobs", fail(lambda made: made)),
        "pass": (server, "make_logits_processors", network),
    }[what]
    make, value = getattr(owner, name), list(FAILING[what].values())[-1]

    def make_it_fail(*args: Any, **kwargs: Any) -> Any:
        numbers = [arg for arg in (*args, getattr(args[0], "num_draft_tokens", None)) if isinstance(arg, int | float)]
        made = make(*args, **kwargs)
        return changed(made) if value in numbers else made

    monkeypatch.setattr(owner, name, make_it_fail)
