"""No body of a request breaks `mlx_lm.server`.

Each answer is a 2xx with a result or a 4xx with a message, and afterwards the server still answers. Nothing hangs, and
each stream ends correctly. CONFORMANCE_PROFILE=full sends 2000 bodies.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from itertools import cycle, product
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from conformance.doors.server.process import CHAT, TEXT, Body, Inside, events
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL, PROFILE
from conformance.server.fields import bodies

OPTIONS = ("--max-tokens", "4")
BODIES = settings(PROFILE) if FULL else settings(PROFILE, max_examples=60, phases=[Phase.explicit, Phase.generate])


def check_refusal(status: int, content: bytes, request: str) -> None:
    if not 400 <= status < 500:
        broken(f"{status}: {content!r}", request)
    with suppress(ValueError, KeyError):
        error = json.loads(content)["error"]
        # The errors of stock releases are strings.
        message = error["message"] if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return
    broken(f"status {status} without a message: {content!r}", request)


BODY: Body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 2}
VALID: list[Body] = [{}, {"stream": True}]
# Bodies that must not reach the generator: in the stock release each ended its thread, or failed the rest of its batch.
HARMFUL: list[Body] = [
    {"stop": [5]},
    {"prompt": ""},
    {"top_k": 100_000, "temperature": 1},
    {"xtc_threshold": 0.9, "xtc_probability": 1, "temperature": 1},
    {"repetition_penalty": 1.1, "repetition_context_size": 2**70},
    {"presence_penalty": 10**400},
    {"logit_bias": {"5000000": 1}},
    {"chat_template_kwargs": {"return_tensors": "np"}},
    {"stream": True, "stream_options": {}},
]


def examples(test: Any) -> Any:
    """The valid ones are asked of both endpoints."""
    for fields, path in [*product(VALID, (CHAT, TEXT)), *zip(HARMFUL, cycle((CHAT, TEXT)), strict=False)]:
        test = example(body=BODY | fields, path=path)(test)
    return test


@BODIES
@examples
@given(body=bodies(), path=st.sampled_from([CHAT, TEXT]))
def test_bodies(server: Inside, body: Body, path: str) -> None:
    response = server.post(body, path)
    if response.status_code == 200:
        said = list(events(response.iter_lines())) if body.get("stream") else [response.json()]
        if any("error" in event for event in said) or not said[0].get("choices"):
            broken(f"status 200 and {response.text!r}", json.dumps(body))
    elif any(body == BODY | fields for fields in VALID):
        broken(f"a valid request is refused: {response.text!r}", json.dumps(body))
    else:
        check_refusal(response.status_code, response.content, json.dumps(body))
    assert server.healthy(), "the server is no longer healthy"


# None of these is a valid body, nor a valid length of one.
WRONG = [b"", b"5", b"NaN", b"{}", b"\xef\xbb\xbf{}", b'{"prompt": "hi", "a"', b'{"prompt": "\xff"}']
WRONG += ['{"prompt": "a"}'.encode("utf-16"), b"[" * 100_000, b"[" * 900 + b"]" * 900, b'{"a": ' + b"1" * 5000 + b"}"]
LENGTHS = [b"-1", b"x", b"", b"1.5", b"9" * 12, b"9" * 30, None]


def test_malformed_requests(server: Inside) -> None:
    """The same of bytes that are no request, or have no JSON."""
    # A request that promises more bytes than it sends is a client that left.
    cases: list[tuple[bytes | None, bytes]]
    cases = [(b"%d" % (len(body) + more), body) for body, more in zip(WRONG * 2, cycle((0, 1, 1000)), strict=False)]
    cases += [(length, b"") for length in LENGTHS]
    for path, (length, body) in zip(cycle((CHAT, TEXT)), cases, strict=False):
        said = b"" if length is None else b"Content-Length: " + length + b"\r\n"
        request = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + said + b"\r\n" + body
        with socket.create_connection(("127.0.0.1", server.httpd.server_port), timeout=server.timeout) as connection:
            connection.sendall(request)
            # The server may have answered and closed already.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            head, _, content = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1."):
            broken(f"no answer but {head!r}", repr(request[:200]))
        check_refusal(int(head.split()[1]), content, repr(request[:200]))
        assert server.healthy(), "the server is no longer healthy"
