"""A server stops within seconds, also during slow work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.testing.faults.server import (
    SOON,
    TOO_LONG,
    load_slowly,
    load_slowly_and_wait,
    planted,
    prefill_slowly,
    prefill_slowly_and_wait,
)
from conformance.testing.server.process import FAST, TEXT, ServerFailed, serve


def stop_soon(sig: signal.Signals, slow: Callable[[], None], folder: Path) -> None:
    """Stop a server while it loads a model, or in the middle of a long prompt."""
    loads = "load" in slow.__name__
    with serve("--prefill-step-size", "16", env=FAST | planted(slow, folder)) as server, ThreadPoolExecutor(1) as pool:
        if not loads:
            request = pool.submit(server.stream, {"prompt": "a b c " * 100, "max_tokens": 1, "seed": 1}, TEXT)
            while "progress: 32/" not in server.log:
                time.sleep(0.1)
        began = time.monotonic()
        server.process.send_signal(sig)
        code = server.process.wait(server.timeout)
        took = time.monotonic() - began
        assert code == 0
        assert took < SOON, f"it took {took:.1f} s"
        assert loads or "error" in request.result().events[-1], "its client is not told"


SIGNALS = pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
@pytest.mark.parametrize("slow", [load_slowly, prefill_slowly])
def test_it_stops_soon(sig: signal.Signals, slow: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="the server ended with 0"):
        stop_soon(sig, slow, tmp_path)


@pytest.mark.planted
@pytest.mark.parametrize("slow", [load_slowly_and_wait, prefill_slowly_and_wait])
def test_a_server_that_takes_its_time_is_found(slow: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it took"):
        stop_soon(signal.SIGTERM, slow, tmp_path)


def test_a_port_in_use(tmp_path: Path) -> None:
    env = {**os.environ, **planted(load_slowly, tmp_path)}
    with serve(env=FAST) as server:
        port = server.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(FIXTURE), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TOO_LONG + 10)
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr
