"""After requests of every kind, of which some clients left, a server holds what it held before, and decodes for nobody.

Each thread that uses mlx gets a stream, whose thread stays: only the generation thread may.
CONFORMANCE_PROFILE=full sends 1000 requests.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import mlx.core as mx
import requests

from conformance.doors.server.process import Body, Client, Inside, inside
from conformance.doors.server.requests import load, send
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL
from conformance.oracle.recorder import fed
from conformance.server.instruments import wait_for_rest
from conformance.server.traffic import FOREVER, GATE_OFF, ROW, SHORT, mixed

N = 1000 if FULL else 24
# In bytes. A row takes 500 kB, and the server holds on to a few: those of its last step, and the cached one.
GROWTH = 4_000_000
# Threads of clients that have just left, and of a library.
OTHERS = 8
# What is refused, and what asks for more than others.
KINDS: list[Body] = [{"top_logprobs": 3, "logprobs": True}, {"draft_type": "x"}, {"model": "/nowhere"}]
# In a batch or alone, a stream or not, with drafts or without.
LEAVING: list[Body] = [
    FOREVER | {"stream": streamed} | fields | draft
    for fields, draft, streamed in (({}, {}, False), ({}, GATE_OFF, True), ({"seed": 1}, {}, True))
]
# The tokens that a client which left may cost.
LEFT = 500


def leave(server: Client, body: Body) -> None:
    """Leave in the middle of an answer."""
    impatient = Client(server.url)
    if body["stream"]:
        with closing(impatient.pieces(body)) as pieces:
            list(islice(pieces, 5))
    else:
        impatient.timeout = 0.3
        with suppress(requests.Timeout):
            impatient.post(body)


def held(server: Inside) -> tuple[int, int, int]:
    """The memory, the threads, and the streams that mlx has made. This makes one."""
    # It is served alone: the batch has ended, and what it held is free.
    assert send(server, ROW | {"seed": 1}).status == 200
    wait_for_rest(server)
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    return mx.get_active_memory(), threads, int(str(mx.new_stream(mx.cpu)).split()[-1].rstrip(")"))


def test_nothing_is_left(tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("def f(x):\n    return x\n" * 50)
    files = ("--draft-reference", str(reference), "--draft-memory", str(tmp_path / "memory"))
    kinds = [SHORT | body for body in KINDS]
    with inside("--prompt-cache-size", "1", "--draft-type", "ngram-mod", *files) as server:
        load(server, mixed(8) + kinds)
        memory, threads, streams = held(server)
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
    if (more := now[1] - threads) > OTHERS:
        broken(f"{more} threads are left of {N} requests")
    if (more := now[2] - streams - 1) > 0:
        broken(f"other threads than the generation thread have used mlx, and left {more} streams")
