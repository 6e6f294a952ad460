"""A random program of requests, with clients that leave and errors at every point of the server.

Afterwards each request has one answer, the next one is served, nothing is decoded for clients that left, and the
memory is what it was. CONFORMANCE_PROFILE=full runs 1000 requests. A failure names the seed, and
CONFORMANCE_SEED=<seed> runs its program again.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import requests

from conformance.doors.server.clients import EDIT, GATE_OFF
from conformance.doors.server.process import CHAT, FAST, Server, planted, serve
from conformance.doors.server.traffic import Body
from conformance.server.program_faults import (
    POINTS,
    RESTING,
    decode_for_nobody,
    die_where_a_request_joins,
    keep_every_row,
    raise_at_points,
)
from conformance.testing.faults.server import never_look_at_the_client

N = 1000 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 40
SEED = int(os.environ.get("CONFORMANCE_SEED", "1"))
CLIENTS, LENGTH = 6, 12
# The tokens that a client which left may cost: the rest of a program has time for more.
FOREVER, LEFT = 20_000, 4000
# In bytes. A row takes 500 kB, and the server holds on to a few: those of its last step, and the cached one.
GROWTH = 4_000_000


class Call(NamedTuple):
    """A request, and what its client does: it reads, sends no more, or closes or resets the connection."""

    body: Body
    end: str
    after: int  # the bytes that it reads before it leaves
    fails: bool  # whether the request is one that raises


# An image that cannot be read: nobody listens at the port of its address.
IMAGE: Body = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}]}


def draw(rng: random.Random) -> Call:
    stream = rng.random() < 0.5
    # A client of a whole answer that sends no more counts as one that left.
    end = rng.choice(["reads", "reads", "sends no more" if stream else "reads", "closes", "resets"])
    leaves = end in ("closes", "resets")
    point = rng.choice(list(POINTS)) if rng.random() < 0.3 else ""
    system = {"role": "system", "content": f"{point} {rng.randrange(4)} " + "abc " * rng.choice([1, 20])}
    body: Body = {"messages": [system, *EDIT], "max_tokens": FOREVER if leaves else rng.choice([1, LENGTH])}
    body |= rng.choice([{}, {}, {"seed": 1}, GATE_OFF, {"temperature": 1}])
    body |= {"stream": stream, "logit_bias": {"0": -100, "4": -100}}
    refused = rng.random() < 0.1
    wrong: Body = rng.choice([{"top_k": True}, {"messages": [IMAGE]}])
    # A request without a batch does not join one, and a prompt that cannot be stored has its response.
    raises = point == "fetches" or (point == "joins" and "seed" not in body)
    return Call(body | wrong if refused else body, end, rng.choice([0, 0, 1, 500, 2000]), raises or refused)


def send(server: Server, call: Call) -> bytes:
    """Send a request over a connection of its own. Returns what the client has read of the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(call.body).encode()
    with socket.create_connection((host, int(port)), timeout=server.timeout) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        if call.end in ("closes", "resets"):
            if call.after:
                # Otherwise it leaves while it is queued.
                connection.settimeout(1)
                _read_some(connection, call.after if call.body["stream"] else 0)
            if call.end == "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        if call.end == "sends no more":
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def _read_some(connection: socket.socket, n: int) -> None:
    try:
        while n > 0 and (piece := connection.recv(n)):
            n -= len(piece)
    except TimeoutError:
        pass


def check_answer(call: Call, answer: bytes) -> None:
    """One answer: a completion, or an error for a request that fails."""
    if call.end in ("closes", "resets"):
        return
    assert answer.count(b"HTTP/1.0 ") == 1, (call, answer)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert (b'"error"' in content) == call.fails, (call, answer)
    if not call.fails:
        assert b" 200 " in head.splitlines()[0], (call, answer)
        assert (content.count(b"data: [DONE]") == 1) == call.body["stream"], (call, answer)


def count(server: Server, name: str) -> int:
    page = requests.get(f"{server.url}/metrics", timeout=server.timeout).text
    found = re.search(rf"^mlx_lm_{name}_total (\d+)$", page, re.MULTILINE)
    assert found
    return int(found[1])


def at_rest(server: Server) -> int:
    """The memory that the server holds while it does nothing."""
    # It is served alone: the batch has ended, and what it held is free.
    last: Body = {"messages": EDIT, "max_tokens": 1, "seed": 1}
    assert server.post(last).status_code == 200
    time.sleep(0.5)
    return int(re.findall(rf"{RESTING} (\d+)", server.log)[-1])


def check_program(server: Server, seed: int, n: int) -> None:
    rng = random.Random(seed)
    calls = [draw(rng) for _ in range(n)]
    before = at_rest(server)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda call: send(server, call), calls))
    for call, answer in zip(calls, answers, strict=True):
        check_answer(call, answer)
    after = at_rest(server)
    assert count(server, "batch_rows") + count(server, "completion_tokens") < LEFT + 100 * n, "it decodes for nobody"
    assert after - before < GROWTH, f"{after - before} bytes more are held"
    assert server.healthy()


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    env = FAST | planted(raise_at_points, tmp_path, *getattr(request, "param", ()))
    with serve("--prompt-cache-size", "1", "--prefill-step-size", "16", env=env) as server:
        yield server


def test_a_random_program(server: Server) -> None:
    check_program(server, SEED, N)


FAULTS = [die_where_a_request_joins, decode_for_nobody, keep_every_row, never_look_at_the_client]


@pytest.mark.planted
@pytest.mark.parametrize("server", [[fault] for fault in FAULTS], ids=lambda one: one[0].__name__, indirect=True)
def test_a_fault_is_found(server: Server) -> None:
    server.timeout = 5.0
    with pytest.raises((AssertionError, requests.ConnectionError, requests.Timeout, OSError)):
        check_program(server, SEED, 40)
