"""What makes things visible in a server, and what makes a request fail."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import count, islice
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.draft.options import DraftOptions
from mlx_lm.models.cache import LRUPromptCache

from conformance.doors.server.process import Body, Client, Inside
from conformance.doors.server.requests import Request, Right
from conformance.oracle.findings import broken

server: Any = import_module("mlx_lm.server")
llama: Any = import_module("mlx_lm.models.llama")


def wait_for_rest(one: Inside) -> None:
    """Wait until the generation thread has nothing to do, and free what nobody holds."""
    idle, wait = threading.Event(), one.generator._next_request

    def wait_and_tell(timeout: float | None = None) -> Any:
        request = wait(timeout)
        # It waits for a request only where it has none.
        if request is None and timeout:
            idle.set()
        return request

    with patch.object(one.generator, "_next_request", wait_and_tell):
        assert idle.wait(one.timeout), "the server is never at rest"
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
# So many of its tokens are compared.
LENGTH = 300


@contextmanager
def beside(server: Client, long: Request, right: Right) -> Iterator[None]:
    """What is asked beside a long answer does not wait for it, and leaves it as it is."""
    before = counters(server)["batch_steps"]
    with closing(server.pieces(long.body | long.draft, long.path)) as pieces:
        text = next(pieces)
        yield
        if (steps := counters(server)["batch_steps"] - before) > STEPS:
            broken(f"who came waited for {steps} steps of a long answer", str(long))
        text += "".join(islice(pieces, LENGTH))
    whole = right(long.but(max_tokens=LENGTH)).text
    n = min(len(text), len(whole))
    if text[:n] != whole[:n]:
        broken(f"a long answer is {text[:n]!r} instead of {whole[:n]!r}", str(long))


@contextmanager
def few_passes(most: int) -> Iterator[None]:
    """No stream stands still for more passes of the model, which a step of the batch makes for it and for others."""
    n, in_a_step, call, step = 0, [0], llama.Model.__call__, server.BatchGenerator.next

    def call_and_count(*args: Any, **kwargs: Any) -> Any:
        nonlocal n
        n += 1
        return call(*args, **kwargs)

    def step_and_count(one: Any) -> Any:
        before = n
        responses = step(one)
        in_a_step.append(n - before)
        return responses

    with (
        patch.object(llama.Model, "__call__", call_and_count),
        patch.object(server.BatchGenerator, "next", step_and_count),
    ):
        yield
    if max(in_a_step) > most:
        broken(f"a stream stood still for {max(in_a_step)} passes, and {most} are the most")


# The parts of a request that can fail, and the fields of a request that has them.
PARTS: dict[str, Body] = {
    **{what: {} for what in ("strategy", "pass", "fetch", "join", "store")},
    "sampler": {"temperature": 0.5},
    "processor": {"repetition_penalty": 1.5},
}


def raise_in_the_next(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part of the next request raise: at once, or what is made for it in its third call."""
    error = ZeroDivisionError(f"the {what} raises")

    def fail(function: Callable[..., Any]) -> Callable[..., Any]:
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
        "fetch": (LRUPromptCache, "fetch_nearest_cache", None),
        "join": (server.BatchGenerator, "insert_segments", None),
        "store": (LRUPromptCache, "insert_cache", None),
    }[what]
    make = getattr(owner, name)

    def once(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, make)
        if changed is None:
            raise error
        return changed(make(*args, **kwargs))

    monkeypatch.setattr(owner, name, once)
