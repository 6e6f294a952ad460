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

from conformance.testing.faults.server import ask_the_model_elsewhere
from conformance.testing.server.clients import GATE_OFF, SHORT, load, mixed
from conformance.testing.server.process import FAST, Server, planted, serve
from conformance.testing.server.traffic import Body, Request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it counts the threads in /proc")
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
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def check_threads(server: Server, n: int) -> None:
    kinds = [Request(SHORT.path, SHORT.body | body) for body in BODIES]
    load(server, mixed(8) + kinds)
    before = n_threads(server)
    load(server, mixed(n) + kinds)
    for page in PAGES:
        requests.get(server.url + page, timeout=server.timeout)
    assert n_threads(server) <= before + OTHERS


def test_threads(tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("def f(x):\n    return x\n" * 50)
    options = ("--draft-reference", str(reference), "--draft-memory", str(tmp_path / "memory"))
    with serve(*options, env=FAST) as server:
        check_threads(server, N)


@pytest.mark.planted
def test_a_thread_that_stays_is_found(tmp_path: Path) -> None:
    with serve(env=FAST | planted(ask_the_model_elsewhere, tmp_path)) as server, pytest.raises(AssertionError):
        check_threads(server, 100)
