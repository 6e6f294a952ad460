"""A server stops within seconds, also during slow work, and tells its clients. It holds no more than it should.

Each thread that uses mlx gets a stream, whose thread stays: only the generation thread may.
CONFORMANCE_PROFILE=full sends 1000 requests, and 500 for each limit of the memory.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
import requests

from conformance import FIXTURE
from conformance.doors.server.process import FAST, Body, Client, Inside, Server, inside, serve
from conformance.doors.server.requests import load, send
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL
from conformance.oracle.recorder import fed
from conformance.server.traffic import EDIT, ENDLESS, FOREVER, GATE_OFF, ROW, SHORT, message, mixed
from conformance.subjects.prompts import Message
from conformance.subjects.tiny import ENDED, ENDED_TEMPLATE, save

# In seconds. A server has to stop sooner, even during work that takes far longer.
SOON = 20.0


def end(server: Server, sig: signal.Signals) -> None:
    server.process.send_signal(sig)
    try:
        code = server.process.wait(SOON)
    except TimeoutExpired:
        broken(f"the server does not stop in {SOON} seconds")
    assert code == 0, f"the server stops with {code}"


def test_a_load_is_stopped(tmp_path: Path) -> None:
    """A model whose config nobody writes is never loaded."""
    model = tmp_path / "model"
    shutil.copytree(FIXTURE, model)
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    with serve(model=model, env=FAST) as server:
        time.sleep(1)
        end(server, signal.SIGTERM)


def test_work_is_stopped(tmp_path: Path) -> None:
    """A long batch, with three signals. The server tells its clients, saves its memory and ends."""
    n, file = 2, tmp_path / "memory"
    body = {"messages": EDIT, **ENDLESS, "max_tokens": 20_000}
    options = ("--prefill-step-size", "16", "--draft-type", "ngram-mod", "--draft-memory", str(file))
    # A new process ends as Python does, which a fork does not.
    with serve(*options, env=FAST, cold=True) as server, ThreadPoolExecutor(n) as pool:
        streams = [pool.submit(list, server.stream(body)) for _ in range(n)]
        while server.log.count("progress") < n:
            time.sleep(0.05)
        time.sleep(0.5)
        for sig in (signal.SIGINT, signal.SIGINT):
            server.process.send_signal(sig)
            time.sleep(0.2)
        end(server, signal.SIGTERM)
        for stream in streams:
            assert "error" in stream.result()[-1], "its client is not told"
        assert file.exists(), "its memory is lost"


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


N = 1000 if FULL else 24
# In bytes. A row takes 500 kB, and the server holds on to a few: those of its last step, and the cached one.
GROWTH = 4_000_000
# What is refused, and what asks for more than others.
KINDS: list[Body] = [{"top_logprobs": 3, "logprobs": True}, {"draft_type": "x"}, {"model": "/nowhere"}]
# In a batch or alone, a stream or not, with drafts or without.
LEAVING: list[Body] = [
    FOREVER | {"stream": streamed} | fields | draft
    for fields, draft, streamed in (({}, {}, False), ({}, GATE_OFF, True), ({"seed": 1}, {}, True))
]
# Nor is a prompt of many steps read on for a client that waits for a whole answer.
LEAVING += [{"prompt": "a b c " * 500, "max_tokens": 1, "seed": 1, "stream": False}]
# The tokens that a client which left may cost.
LEFT = 350


def leave(server: Client, body: Body) -> None:
    """Leave in the middle of an answer, or at the begin of a prompt."""
    impatient = Client(server.url)
    if body["stream"]:
        with closing(impatient.pieces(body)) as pieces:
            list(islice(pieces, 5))
    else:
        impatient.timeout = 0.3 if "messages" in body else 0.03
        with suppress(requests.Timeout):
            impatient.post(body)


def held(server: Inside) -> tuple[int, int]:
    """The memory, and the streams that mlx has made. This makes one."""
    # It is served alone: the batch has ended, and what it held is free.
    assert send(server, ROW | {"seed": 1}).status == 200
    wait_for_rest(server)
    return mx.get_active_memory(), int(str(mx.new_stream(mx.cpu)).split()[-1].rstrip(")"))


def test_nothing_is_left(tmp_path: Path) -> None:
    """After requests of every kind, of which some clients left, a server holds what it held, and decodes for nobody."""
    reference = tmp_path / "reference.txt"
    reference.write_text("def f(x):\n    return x\n" * 50)
    options = ("--prompt-cache-size", "1", "--prefill-step-size", "32", "--draft-type", "ngram-mod")
    files = ("--draft-reference", str(reference), "--draft-memory", str(tmp_path / "memory"))
    kinds = [SHORT | body for body in KINDS]
    # What pytest keeps of an error that is logged would hold what a request computed.
    with patch.object(logging.root, "handlers", []), inside(*options, *files) as server:
        load(server, mixed(8) + kinds)
        memory, streams = held(server)
        with ThreadPoolExecutor(len(LEAVING)) as clients, fed(server.generator.model_provider.model) as blocks:
            list(clients.map(lambda body: leave(server, body), LEAVING))
            wait_for_rest(server)
        if (n := sum(blocks)) > LEFT * len(LEAVING):
            broken(f"{n} tokens are fed for {len(LEAVING)} clients that left")
        answers = load(server, mixed(N) + kinds)
        assert [answer.status for answer in answers] == [200] * (N + 1) + [400, 404]
        server.get("/metrics")
        now = held(server)
        assert server.healthy(), "the server is no longer healthy"
    if (more := now[0] - memory) > GROWTH:
        broken(f"{more} bytes more are held after {N} requests")
    if (more := now[1] - streams - 1) > 0:
        broken(f"other threads than the generation thread have used mlx, and left {more} streams")


CLIENTS = 3
ROUNDS = 170 if FULL else 12
# One prompt with few checkpoints, a few prompts, and many.
LIMITS = (400_000, 1_500_000, 6_000_000) if FULL else (400_000,)
# mlx leaves an array up to 16 KiB of a longer buffer. The small states of a recurrent layer may have that, not its
# large ones of 64 KiB.
SLACK = 0.25
LARGE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}


def request(rng: random.Random) -> Body:
    """Each message is one of a few, and may end early, so that conversations differ at any place."""
    said: list[Message] = [message("system", 60, rng.randrange(3))]
    for turn in range(rng.randrange(1, 4)):
        one = message(("user", "assistant")[turn % 2], 30, 10 * turn + rng.randrange(3))
        said.append(one | {"content": one["content"][: rng.choice([20, 30])]})
    alone: Body = {"seed": 1} if rng.random() < 0.3 else {}
    return {"messages": [*said, message("user", 10, rng.randrange(5))], "max_tokens": 2, **alone}


@pytest.mark.contract("C11")
@pytest.mark.parametrize("limit", LIMITS)
def test_the_memory_stays_within_its_limit(tmp_path_factory: pytest.TempPathFactory, limit: int) -> None:
    """By the count of --prompt-cache-bytes, and by that of mlx."""
    model = save("qwen3_next", tmp_path_factory.mktemp("model"), ENDED_TEMPLATE, **ENDED, **LARGE)
    rng, counted = random.Random(limit), 0
    with inside("--prompt-cache-size", "100", "--prompt-cache-bytes", str(limit), model=model) as server:
        wait_for_rest(server)
        before = mx.get_active_memory()
        for _ in range(ROUNDS):
            answers = load(server, [request(rng) for _ in range(CLIENTS)], CLIENTS)
            assert {answer.status for answer in answers} == {200}
            wait_for_rest(server)
            now, used = server.generator.prompt_cache.nbytes, mx.get_active_memory() - before
            counted = max(counted, now)
            if now > limit or used > (1 + SLACK) * limit:
                broken(f"{used} bytes are used and {now} counted, where {limit} are the most")
    assert counted > 0.9 * limit, f"the limit is not reached: {counted} of {limit}"
