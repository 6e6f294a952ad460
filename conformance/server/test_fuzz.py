"""No body of a request breaks `mlx_lm.server`.

Each answer is a 2xx with a result or a 4xx with a message, and afterwards the server still answers. Nothing hangs, and
each stream ends correctly. CONFORMANCE_PROFILE=full sends 2000 bodies and 500 malformed requests.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from conformance.doors.server.process import CHAT, FAST, TEXT, Body, Client, Server, events, serve
from conformance.oracle.findings import broken
from conformance.server.fields import bodies, malformed

COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
QUICK = settings(max_examples=150, derandomize=True, phases=[Phase.explicit, Phase.generate], **COMMON)
FULL = settings(max_examples=2000, **COMMON)
PROFILE = FULL if os.environ.get("CONFORMANCE_PROFILE") == "full" else QUICK
RAW = settings(PROFILE, max_examples=PROFILE.max_examples // 4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--max-tokens", "4", env=FAST) as server:
        yield server


def check(client: Client, body: Body, path: str) -> None:
    """The property to test: send a body, then check the answer and the server."""
    response = client.post(body, path)
    if response.status_code != 200:
        check_refusal(response.status_code, response.content)
    else:
        said = list(events(response.iter_lines())) if body.get("stream") else [response.json()]
        if any("error" in event for event in said) or not said[0].get("choices"):
            broken(f"status 200 and {response.text!r}", json.dumps(body))
    assert client.healthy(), "the server is no longer healthy"


def check_refusal(status: int, content: bytes) -> None:
    if not 400 <= status < 500:
        broken(f"{status}: {content!r}")
    with suppress(ValueError, KeyError):
        error = json.loads(content)["error"]
        # The errors of stock releases are strings.
        message = error["message"] if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return
    broken(f"status {status} without a message: {content!r}")


def raw(client: Client, request: bytes) -> bytes:
    """Send raw bytes, close the sending side, and read until the server closes."""
    host, port = client.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=client.timeout) as connection:
        connection.sendall(request)
        # The server may have answered and closed already.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


BODY: Body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 2}
# Bodies that must not reach the generator: in the stock release each ended its thread, or failed the rest of its batch.
HARMFUL: list[Body] = [
    {"stop": [5]},
    {"stop": "x" * 2**20},
    {"prompt": ""},
    {"prompt": [5, 6]},
    {"top_k": 100_000, "temperature": 1},
    {"xtc_threshold": 0.9, "xtc_probability": 1, "temperature": 1},
    {"repetition_penalty": 1.1, "repetition_context_size": 2**70},
    {"presence_penalty": 10**400},
    {"temperature": float("nan")},
    {"logit_bias": {"5000000": 1}},
    {"logit_bias": {"-5000000": 1}},
    {"chat_template_kwargs": {"return_tensors": "np"}},
    {"stream": True, "stream_options": {}},
]


def harmful(test: Any) -> Any:
    for fields in HARMFUL:
        test = example(body=BODY | fields, path=TEXT if "prompt" in fields else CHAT)(test)
    return test


def test_valid_bodies_are_answered(server: Server) -> None:
    """A server that refuses everything would pass the other tests."""
    for path, stream in product([CHAT, TEXT], [False, True]):
        body = BODY | {"stream": stream}
        assert server.post(body, path).status_code == 200, f"{path} {body}"
        check(server, body, path)


@PROFILE
@harmful
@given(body=bodies(), path=st.sampled_from([CHAT, TEXT]))
def test_bodies(server: Server, body: Body, path: str) -> None:
    check(server, body, path)


@RAW
@given(request=malformed())
def test_malformed_requests(server: Server, request: bytes) -> None:
    """The same of bytes that are no request, or have no JSON."""
    head, _, content = raw(server, request).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1."):
        broken(f"no answer but {head!r}", repr(request))
    check_refusal(int(head.split()[1]), content)
    assert server.healthy(), "the server is no longer healthy"
