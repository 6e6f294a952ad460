"""A server has the threads that it had, after requests of all kinds.

Each thread that uses mlx gets a stream, whose thread stays: only the generation thread may.
CONFORMANCE_PROFILE=full sends 1000 requests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import requests

from conformance.doors.server.clients import GATE_OFF, SHORT, load, mixed
from conformance.doors.server.process import FAST, Server, planted, serve
from conformance.doors.server.traffic import Body, Request
from conformance.testing.faults.server import ask_the_model_elsewhere, tell_streams

N = 1000 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 100
# Those of clients that have just left, and of a library.
OTHERS = 8
BODIES: list[Body] = [
    {"logprobs": True, "top_logprobs": 3},
    {"draft_type": "x"},
    {"model": "/nowhere"},
    GATE_OFF | {"draft_margin": "auto"},
]
PAGES = ["/health", "/metrics", "/v1/models", "/v1/models/nothing", "/nothing"]


def n_threads(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task")) if sys.platform == "linux" else 0


def n_streams(server: Server) -> int:
    """The number of streams that mlx has made. This makes one."""
    return int(requests.get(f"{server.url}/streams", timeout=server.timeout).text)


def check_threads(server: Server, n: int) -> None:
    kinds = [Request(SHORT.path, SHORT.body | body) for body in BODIES]
    load(server, mixed(8) + kinds)
    threads, streams = n_threads(server), n_streams(server)
    load(server, mixed(n) + kinds)
    for page in PAGES:
        requests.get(server.url + page, timeout=server.timeout)
    assert n_threads(server) <= threads + OTHERS
    assert n_streams(server) == streams + 1, "another thread than the generation thread has used mlx"


def test_threads(tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("def f(x):\n    return x\n" * 50)
    files = ("--draft-reference", str(reference), "--draft-memory", str(tmp_path / "memory"))
    with serve("--draft-type", "ngram-mod", *files, env=FAST | planted(tell_streams, tmp_path)) as server:
        check_threads(server, N)


@pytest.mark.planted
def test_another_thread_that_uses_mlx_is_found(tmp_path: Path) -> None:
    env = FAST | planted(ask_the_model_elsewhere, tmp_path, tell_streams)
    with serve(env=env) as server, pytest.raises(AssertionError, match="another thread"):
        check_threads(server, 20)
