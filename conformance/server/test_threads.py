"""A server has the threads that it had, after requests of all kinds.

Each thread that uses mlx gets a stream, whose thread stays: only the generation thread may.
CONFORMANCE_PROFILE=full sends 1000 requests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mlx.core as mx

from conformance.doors.server.process import Body, inside
from conformance.doors.server.requests import load
from conformance.oracle.findings import broken
from conformance.server.traffic import GATE_OFF, SHORT, mixed

N = 1000 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 40
# Those of clients that have just left, and of a library.
OTHERS = 8
BODIES: list[Body] = [
    {"logprobs": True, "top_logprobs": 3},
    {"draft_type": "x"},
    {"model": "/nowhere"},
    GATE_OFF | {"draft_margin": "auto"},
]
PAGES = ["/health", "/metrics", "/v1/models", "/v1/models/nothing", "/nothing"]


def n_threads() -> int:
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


def n_streams() -> int:
    """The number of streams that mlx has made. This makes one."""
    return int(str(mx.new_stream(mx.cpu)).split()[-1].rstrip(")"))


def test_threads(tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("def f(x):\n    return x\n" * 50)
    files = ("--draft-reference", str(reference), "--draft-memory", str(tmp_path / "memory"))
    kinds = [SHORT.but(**body) for body in BODIES]
    with inside("--draft-type", "ngram-mod", *files) as server:
        load(server, mixed(8) + kinds)
        threads, streams = n_threads(), n_streams()
        load(server, mixed(N) + kinds)
        for page in PAGES:
            server.get(page)
        if (more := n_threads() - threads) > OTHERS:
            broken(f"{more} threads are left of {N} requests")
        if (more := n_streams() - streams - 1) > 0:
            broken(f"other threads than the generation thread have used mlx, and left {more} streams")
