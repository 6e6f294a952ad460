"""What makes things visible in a server: its rest, its counters, and a long answer."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from conformance.doors.server.process import Body, Client, Inside
from conformance.doors.server.requests import Right
from conformance.oracle.findings import broken


def wait_for_rest(one: Inside) -> None:
    """Wait until the generation thread has nothing to do, and free what nobody holds."""
    idle, wait = threading.Event(), one.generator._next_request

    def wait_and_tell(timeout: float | None = None) -> Any:
        request = wait(timeout)
        # It waits for a request only where it has none.
        if request is None and timeout:
            idle.set()
        return request

    with patch.object(one.generator, "_next_request", wait_and_tell):
        assert idle.wait(one.timeout), "the server is never at rest"
    gc.collect()
    mx.synchronize()


def counters(server: Client) -> dict[str, int]:
    """The counters of /metrics, which has the format of Prometheus."""
    page = server.get("/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    counter = r"^# HELP mlx_lm_(\w+)_total \S.*\n# TYPE mlx_lm_\1_total counter\nmlx_lm_\1_total (\d+)$"
    found = re.findall(counter, page.text, re.MULTILINE)
    assert 3 * len(found) == len(page.text.splitlines()), page.text
    return {name: int(value) for name, value in found}


# The most steps of a batch that a request may wait for: far less than a long answer takes.
STEPS = 600
# So many of its tokens are compared.
LENGTH = 120


@contextmanager
def beside(server: Client, long: Body, right: Right) -> Iterator[None]:
    """What is asked beside a long answer does not wait for it, and leaves it as it is."""
    before = counters(server)["batch_steps"]
    with closing(server.pieces(long)) as pieces:
        text = next(pieces)
        yield
        if (steps := counters(server)["batch_steps"] - before) > STEPS:
            broken(f"who came waited for {steps} steps of a long answer", json.dumps(long))
        text += "".join(islice(pieces, LENGTH))
    whole = right(long | {"max_tokens": LENGTH}).text
    n = min(len(text), len(whole))
    if text[:n] != whole[:n]:
        broken(f"a long answer is {text[:n]!r} instead of {whole[:n]!r}", json.dumps(long))
