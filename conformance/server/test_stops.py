"""A server stops within seconds, also during slow work."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance.doors.server.clients import EDIT, ENDLESS
from conformance.doors.server.process import FAST, TEXT, planted, serve
from conformance.testing.faults.server import (
    SOON,
    load_slowly,
    load_slowly_and_wait,
    prefill_slowly,
    prefill_slowly_and_wait,
    stop_at_a_second_signal,
    stop_without_a_word,
)


def stop_soon(sig: signal.Signals, slow: Callable[[], None], folder: Path) -> None:
    """Stop a server while it loads a model, or in the middle of a long prompt."""
    loads, options = "load" in slow.__name__, ("--prefill-step-size", "16")
    with serve(*options, env=FAST | planted(slow, folder), cold=True) as server, ThreadPoolExecutor(1) as pool:
        if not loads:
            request = pool.submit(server.stream, {"prompt": "a b c " * 100, "max_tokens": 1, "seed": 1}, TEXT)
            while "progress: 32/" not in server.log:
                time.sleep(0.1)
        server.timeout = SOON
        assert server.end(sig) == 0
        assert loads or "error" in request.result().events[-1], "its client is not told"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slow", [load_slowly, prefill_slowly])
def test_it_stops_soon(sig: signal.Signals, slow: Callable[[], None], tmp_path: Path) -> None:
    stop_soon(sig, slow, tmp_path)


@pytest.mark.planted
@pytest.mark.parametrize("slow", [load_slowly_and_wait, prefill_slowly_and_wait])
def test_a_server_that_takes_its_time_is_found(slow: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        stop_soon(signal.SIGTERM, slow, tmp_path)


def stop_a_batch(file: Path, env: dict[str, str]) -> None:
    """Stop a server with three signals. It tells the clients of its batch, saves its memory and ends."""
    options = ("--draft-type", "ngram-mod", "--draft-memory", str(file))
    body = {"messages": EDIT, **ENDLESS, "max_tokens": 20_000}
    with serve(*options, env=FAST | env, cold=True) as server, ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(server.stream, body) for _ in range(2)]
        while server.log.count("progress") < 2:
            time.sleep(0.05)
        time.sleep(0.5)
        for sig in (signal.SIGINT, signal.SIGINT):
            server.process.send_signal(sig)
            time.sleep(0.2)
        code = server.end(signal.SIGTERM)
        for stream in streams:
            assert "error" in stream.result().events[-1], "its client is not told"
        assert file.exists(), "its memory is lost"
        assert code == 0


def test_a_batch_is_stopped(tmp_path: Path) -> None:
    stop_a_batch(tmp_path / "memory", {})


@pytest.mark.planted
@pytest.mark.parametrize("fault", [stop_without_a_word, stop_at_a_second_signal])
def test_a_stop_that_loses_something_is_found(fault: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises((AssertionError, OSError)):
        stop_a_batch(tmp_path / "memory", planted(fault, tmp_path))
