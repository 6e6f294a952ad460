"""A server stops within seconds, also during slow work, and tells its clients."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from conformance import FIXTURE
from conformance.doors.server.process import FAST, Body, Server, serve
from conformance.oracle.findings import broken
from conformance.server.traffic import EDIT, ENDLESS

# In seconds. A server has to stop sooner, even during work that takes far longer.
SOON = 20.0


def end(server: Server, sig: signal.Signals) -> None:
    server.process.send_signal(sig)
    try:
        code = server.process.wait(SOON)
    except TimeoutExpired:
        broken(f"the server does not stop in {SOON} seconds")
    assert code == 0, f"the server stops with {code}"


def test_a_load_is_stopped(tmp_path: Path) -> None:
    """A model whose config nobody writes is never loaded."""
    model = tmp_path / "model"
    shutil.copytree(FIXTURE, model)
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    with serve(model=model, env=FAST) as server:
        time.sleep(0.3)
        end(server, signal.SIGTERM)


# A prompt of many steps that is served alone, and a batch. How many clients ask, and what is logged of each.
WORK: dict[str, tuple[Body, int, str]] = {
    "prompt": ({"prompt": "a b c " * 20_000, "max_tokens": 1, "seed": 1}, 1, "progress: 32/"),
    "batch": ({"messages": EDIT, **ENDLESS, "max_tokens": 20_000}, 2, "progress"),
}


@pytest.mark.parametrize("work", WORK)
def test_work_is_stopped(work: str, tmp_path: Path) -> None:
    """With three signals. The server tells its clients, saves its memory and ends."""
    (body, n, line), file = WORK[work], tmp_path / "memory"
    options = ("--prefill-step-size", "16", "--draft-type", "ngram-mod", "--draft-memory", str(file))
    # A new process ends as Python does, which a fork does not.
    with serve(*options, env=FAST, cold=work == "batch") as server, ThreadPoolExecutor(n) as pool:
        streams = [pool.submit(list, server.stream(body)) for _ in range(n)]
        while server.log.count(line) < n:
            time.sleep(0.05)
        time.sleep(0.2)
        for sig in (signal.SIGINT, signal.SIGINT):
            server.process.send_signal(sig)
            time.sleep(0.1)
        end(server, signal.SIGTERM)
        for stream in streams:
            assert "error" in stream.result()[-1], "its client is not told"
        # What has said nothing has nothing to save.
        assert work == "prompt" or file.exists(), "its memory is lost"
