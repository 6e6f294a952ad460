"""A server stops within seconds, also during slow work."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.testing.faults.server import (
    SOON,
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
from conformance.testing.server.process import FAST, TEXT, serve


def stop_soon(sig: signal.Signals, slow: Callable[[], None], folder: Path) -> None:
    """Stop a server while it loads a model, or in the middle of a long prompt."""
    loads = "load" in slow.__name__
    with serve("--prefill-step-size", "16", env=FAST | planted(slow, folder)) as server, ThreadPoolExecutor(1) as pool:
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
        for sig in (signal.SIGINT, signal.SIGINT):
            server.process.send_signal(sig)
            time.sleep(0.2)
        code = server.end(signal.SIGTERM)
        for stream in streams:
            assert "error" in stream.result().events[-1], "its client is not told"
        assert file.exists() or removed, "its memory is lost"
        assert code == 0


def test_a_batch_is_stopped(tmp_path: Path) -> None:
    stop_a_batch(tmp_path / "memory", {})


def test_a_memory_that_cannot_be_saved(tmp_path: Path) -> None:
    """The server ends all the same."""
    folder = tmp_path / "removed"
    folder.mkdir()
    stop_a_batch(folder / "memory", {}, removed=folder)


@pytest.mark.planted
@pytest.mark.parametrize("fault", [stop_without_a_word, stop_at_a_second_signal])
def test_a_stop_that_loses_something_is_found(fault: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises((AssertionError, OSError)):
        stop_a_batch(tmp_path / "memory", planted(fault, tmp_path))


def check_it_ends(options: Sequence[str], named: str, env: dict[str, str]) -> None:
    """A server that cannot serve says why in one line, and ends, also while its model is still loaded."""
    command = [sys.executable, "-m", "mlx_lm", "server", *options]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **env}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=2 * SOON)
    except subprocess.TimeoutExpired:
        raise AssertionError("it serves nothing and does not end") from None
    assert done.returncode in (1, 2)
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


NO_MODEL = ("--model", "nosuch", "--port", "0")
PORT = ("--model", str(FIXTURE), "--port")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param(NO_MODEL, "nosuch", id="model"),
        pytest.param((*PORT, "99999"), "99999", id="port"),
        pytest.param((*PORT, "0", "--host", ".x"), "Cannot serve at", id="address"),
        pytest.param(PORT, "Address already in use", id="port in use"),
    ],
)
def test_a_server_that_cannot_serve_ends(options: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = () if options[-1] != "--port" else (str(taken.getsockname()[1]),)
        check_it_ends((*options, *port), named, planted(load_slowly, tmp_path) if port else FAST)


@pytest.mark.planted
def test_a_server_that_serves_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not end"):
        check_it_ends(NO_MODEL, "nosuch", planted(serve_without_a_model, tmp_path))
