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
    serve_without_a_model,
    stop_at_a_second_signal,
    stop_without_a_word,
)
from conformance.testing.server.clients import EDIT, ENDLESS
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


def stop_a_batch(file: Path, env: dict[str, str], removed: Path | None = None) -> None:
    """Stop a server with three signals. It tells the clients of its batch, saves its memory and ends."""
    options = ("--draft-type", "ngram-mod", "--draft-memory", str(file))
    body = {"messages": EDIT, **ENDLESS, "max_tokens": 20_000}
    with serve(*options, env=FAST | env) as server, ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(server.stream, body) for _ in range(2)]
        while server.log.count("progress") < 2:
            time.sleep(0.05)
        time.sleep(0.5)
        if removed is not None:
            removed.rmdir()
        for sig in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            if server.process.poll() is None:
                server.process.send_signal(sig)
            time.sleep(0.2)
        code = server.process.wait(server.timeout)
        for stream in streams:
            assert "error" in stream.result().events[-1], "its client is not told"
        assert file.exists(), "its memory is lost"
        assert code == 0


def test_a_batch_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="the server ended with 0"):
        stop_a_batch(tmp_path / "memory", {})


def test_a_memory_that_cannot_be_saved(tmp_path: Path) -> None:
    """The server ends all the same."""
    folder = tmp_path / "removed"
    folder.mkdir()
    with pytest.raises(AssertionError, match="its memory is lost"):
        stop_a_batch(folder / "memory", {}, removed=folder)


@pytest.mark.planted
@pytest.mark.parametrize("fault", [stop_without_a_word, stop_at_a_second_signal])
def test_a_stop_that_loses_something_is_found(fault: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises((AssertionError, OSError)) as found:
        stop_a_batch(tmp_path / "memory", planted(fault, tmp_path))
    assert "the server ended with 0" not in str(found.value)


def test_an_address_that_is_none() -> None:
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(FIXTURE), "--host", ".x"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **FAST}, timeout=TOO_LONG + 30)
    assert done.returncode == 1
    assert "Cannot serve at" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    env = {**os.environ, **planted(load_slowly, tmp_path)}
    with serve(env=FAST) as server:
        port = server.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(FIXTURE), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TOO_LONG + 10)
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def check_it_ends(options: list[str], named: str, env: dict[str, str]) -> None:
    """A server that cannot serve says why in one line, and ends."""
    command = [sys.executable, "-m", "mlx_lm", "server", *options]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **env}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TOO_LONG + 10)
    except subprocess.TimeoutExpired:
        raise AssertionError("it serves nothing and does not end") from None
    assert done.returncode in (1, 2)
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


NOTHING = ["--model", "nosuch", "--port", "0"]


@pytest.mark.parametrize(
    ("options", "named"),
    [(NOTHING, "nosuch"), (["--model", str(FIXTURE), "--port", "99999"], "99999")],
    ids=["model", "port"],
)
def test_a_server_that_cannot_serve_ends(options: list[str], named: str) -> None:
    check_it_ends(options, named, {})


@pytest.mark.planted
def test_a_server_that_serves_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not end"):
        check_it_ends(NOTHING, "nosuch", planted(serve_without_a_model, tmp_path))
