"""A server stops within seconds, also during slow work."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from conformance.doors.server.process import FAST, TEXT, Server, planted, serve
from conformance.oracle.findings import broken
from conformance.server.instruments import SOON, load_slowly, prefill_slowly
from conformance.server.traffic import EDIT, ENDLESS


def end(server: Server, sig: signal.Signals) -> None:
    server.timeout = SOON
    try:
        code = server.end(sig)
    except TimeoutExpired:
        broken(f"the server does not stop in {SOON} seconds")
    assert code == 0, f"the server stops with {code}"


@pytest.mark.parametrize(("slow", "sig"), [(load_slowly, signal.SIGTERM), (prefill_slowly, signal.SIGINT)])
def test_it_stops_soon(slow: Callable[[], None], sig: signal.Signals, tmp_path: Path) -> None:
    """While it loads a model, or in the middle of a long prompt."""
    options = ("--prefill-step-size", "16")
    with serve(*options, env=FAST | planted(slow, tmp_path), cold=True) as server, ThreadPoolExecutor(1) as pool:
        if slow is prefill_slowly:
            request = pool.submit(list, server.stream({"prompt": "a b c " * 100, "max_tokens": 1, "seed": 1}, TEXT))
            while "progress: 32/" not in server.log:
                time.sleep(0.1)
        end(server, sig)
        assert slow is load_slowly or "error" in request.result()[-1], "its client is not told"


def test_a_batch_is_stopped(tmp_path: Path) -> None:
    """With three signals. The server tells the clients of its batch, saves its memory and ends."""
    file = tmp_path / "memory"
    options = ("--draft-type", "ngram-mod", "--draft-memory", str(file))
    body = {"messages": EDIT, **ENDLESS, "max_tokens": 20_000}
    with serve(*options, env=FAST, cold=True) as server, ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(list, server.stream(body)) for _ in range(2)]
        while server.log.count("progress") < 2:
            time.sleep(0.05)
        time.sleep(0.5)
        for sig in (signal.SIGINT, signal.SIGINT):
            server.process.send_signal(sig)
            time.sleep(0.2)
        end(server, signal.SIGTERM)
        for stream in streams:
            assert "error" in stream.result()[-1], "its client is not told"
        assert file.exists(), "its memory is lost"
