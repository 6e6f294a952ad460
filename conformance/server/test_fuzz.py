"""No body of a request breaks `mlx_lm.server`.

Each answer is a 2xx with a result or a 4xx with a message, and afterwards the server still answers. Nothing hangs, and
each stream ends correctly. CONFORMANCE_PROFILE=full sends 2000 bodies and 500 malformed requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from conformance.doors.server.process import CHAT, FAST, TEXT, Client, Server, read_stream, serve
from conformance.server.fuzz_bodies import bodies, malformed

COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
QUICK = settings(max_examples=150, derandomize=True, phases=[Phase.explicit, Phase.generate], **COMMON)
FULL = settings(max_examples=2000, **COMMON)
PROFILE = FULL if os.environ.get("CONFORMANCE_PROFILE") == "full" else QUICK
RAW = settings(PROFILE, max_examples=PROFILE.max_examples // 4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--max-tokens", "4", env=FAST) as server:
        yield server


def check(client: Client, body: dict[str, Any], path: str) -> None:
    """The property to test: send a body, then check the answer and the server."""
    response = client.post(body, path)
    if response.status_code == 200 and body.get("stream"):
        stream = read_stream(response)
        assert stream.done, f"a stream without an end: {response.text!r}"
        assert not any("error" in event for event in stream.events), response.text
        assert stream.events[0]["choices"], response.text
    elif response.status_code == 200:
        assert response.json()["choices"], response.text
    else:
        check_refusal(response.status_code, response.content)
    assert client.healthy(), "the server is no longer healthy"


def check_refusal(status: int, content: bytes) -> None:
    assert 400 <= status < 500, f"{status}: {content!r}"
    error = json.loads(content)["error"]
    # The errors of stock releases are strings.
    message = error["message"] if isinstance(error, dict) else error
    assert isinstance(message, str), content
    assert message, content


def check_raw(client: Client, request: bytes) -> None:
    """The same property for bytes that are no request, or have no JSON."""
    head, _, content = client.raw(request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1."), f"no answer: {head!r}"
    check_refusal(int(head.split()[1]), content)
    assert client.healthy(), "the server is no longer healthy"


BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 2}
# Bodies that must not reach the generator: in the stock release each ended its thread, or failed the rest of its batch.
HARMFUL: list[dict[str, Any]] = [
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


@PROFILE
@harmful
@given(body=bodies(), path=st.sampled_from([CHAT, TEXT]))
def test_bodies(server: Server, body: dict[str, Any], path: str) -> None:
    check(server, body, path)


@RAW
@given(request=malformed())
def test_malformed_requests(server: Server, request: bytes) -> None:
    check_raw(server, request)


def test_valid_bodies_are_answered() -> None:
    """Valid bodies get answers: a server that refuses everything would pass the other tests. This server is new."""
    with serve("--max-tokens", "4", env=FAST) as server:
        for path, stream in product([CHAT, TEXT], [False, True]):
            assert server.post({**BODY, "stream": stream}, path).status_code == 200
            check(server, {**BODY, "stream": stream}, path)


class Fake(Client):
    """A client of a server that gives every request this answer."""

    def __init__(self, status: int, content: str, healthy: bool = True) -> None:
        super().__init__("nowhere")
        self._status, self._content, self._healthy = status, content.encode(), healthy

    def post(self, body: Any, path: str = CHAT) -> requests.Response:
        response = requests.Response()
        response.status_code, response._content = self._status, self._content
        return response

    def raw(self, request: bytes) -> bytes:
        return self._content

    def healthy(self) -> bool:
        return self._healthy


# The answer of a broken server, and the error of the check.
FAULTS: dict[str, tuple[Fake, type[Exception], str]] = {
    "answers 500": (Fake(500, '{"error": "oh"}'), AssertionError, "500"),
    "has no message": (Fake(400, ""), json.JSONDecodeError, "Expecting value"),
    "has an empty message": (Fake(400, '{"error": ""}'), AssertionError, "error"),
    "has no result": (Fake(200, "{}"), KeyError, "choices"),
    "ends a stream early": (Fake(200, 'data: {"choices": [{}]}\n\n'), AssertionError, "without an end"),
    "fails in a stream": (Fake(200, 'data: {"error": {}}\n\ndata: [DONE]\n\n'), AssertionError, "error"),
    "is dead afterwards": (Fake(400, '{"error": "a"}', healthy=False), AssertionError, "no longer healthy"),
}


@pytest.mark.planted
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_sees(fault: str) -> None:
    client, error, message = FAULTS[fault]
    with pytest.raises(error, match=message):
        check(client, {"stream": "stream" in fault}, CHAT)


@pytest.mark.planted
@pytest.mark.parametrize("answer", ["", "HTTP/1.0 500 Error\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n{}"])
def test_the_check_of_malformed_requests_sees(answer: str) -> None:
    with pytest.raises(AssertionError):
        check_raw(Fake(0, answer), b"")
