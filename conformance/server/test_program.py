"""A random program of requests, with clients that leave, and requests that are refused.

Afterwards each request has one answer, the next one is served, nothing is decoded for clients that left, and the
memory is what it was. CONFORMANCE_PROFILE=full runs 1000 requests. A failure names the seed, and
CONFORMANCE_SEED=<seed> runs its program again.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import mlx.core as mx

from conformance.doors.server.process import CHAT, Body, Client, Inside, inside
from conformance.oracle.findings import broken
from conformance.server.instruments import counters, wait_for_rest
from conformance.server.traffic import EDIT, GATE_OFF

N = 1000 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 40
SEED = int(os.environ.get("CONFORMANCE_SEED", "1"))
CLIENTS, LENGTH = 6, 12
# The tokens that a client which left may cost: the rest of a program has time for more.
FOREVER, LEFT = 2000, 4000
# In bytes. A row takes 500 kB, and the server holds on to a few: those of its last step, and the cached one.
GROWTH = 4_000_000


class Call(NamedTuple):
    """A request, and what its client does: it reads, sends no more, or closes or resets the connection."""

    body: Body
    end: str
    after: int  # the bytes that it reads before it leaves
    fails: bool  # whether it is refused


# An image that cannot be read: nobody listens at the port of its address.
IMAGE: Body = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}]}


def draw(rng: random.Random) -> Call:
    stream = rng.random() < 0.5
    # A client of a whole answer that sends no more counts as one that left.
    end = rng.choice(["reads", "reads", "sends no more" if stream else "reads", "closes", "resets"])
    leaves = end in ("closes", "resets")
    system = {"role": "system", "content": f"{rng.randrange(4)} " + "abc " * rng.choice([1, 20])}
    body: Body = {"messages": [system, *EDIT], "max_tokens": FOREVER if leaves else rng.choice([1, LENGTH])}
    body |= rng.choice([{}, {}, {"seed": 1}, GATE_OFF, {"temperature": 1}])
    body |= {"stream": stream, "logit_bias": {"0": -100, "4": -100}}
    refused = rng.random() < 0.1
    wrong: Body = rng.choice([{"top_k": True}, {"messages": [IMAGE]}])
    return Call(body | wrong if refused else body, end, rng.choice([0, 0, 1, 500, 2000]), refused)


def send(server: Client, call: Call) -> bytes:
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
    head, _, content = answer.partition(b"\r\n\r\n")
    right = answer.count(b"HTTP/1.0 ") == 1 and (b'"error"' in content) == call.fails
    if right and not call.fails:
        right = b" 200 " in head.splitlines()[0] and (content.count(b"data: [DONE]") == 1) == call.body["stream"]
    if not right:
        kind = "fails" if call.fails else "is right"
        broken(f"a request that {kind} is answered with {answer!r}", json.dumps(call.body))


def at_rest(server: Inside) -> int:
    """The memory that the server holds while it does nothing."""
    # It is served alone: the batch has ended, and what it held is free.
    last: Body = {"messages": EDIT, "max_tokens": 1, "seed": 1}
    assert server.post(last).status_code == 200
    wait_for_rest(server)
    return int(mx.get_active_memory())


def test_a_random_program() -> None:
    rng = random.Random(SEED)
    calls = [draw(rng) for _ in range(N)]
    with inside("--prompt-cache-size", "1", "--prefill-step-size", "16") as server:
        before = at_rest(server)
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda call: send(server, call), calls))
        for call, answer in zip(calls, answers, strict=True):
            check_answer(call, answer)
        more = at_rest(server) - before
        counted = counters(server)
        assert server.healthy(), "the server is no longer healthy"
    if (n := counted["batch_rows"] + counted["completion_tokens"]) >= LEFT + 100 * N:
        broken(f"{n} tokens are decoded for {N} clients, some for nobody")
    if more >= GROWTH:
        broken(f"{more} bytes more are held after {N} requests")
