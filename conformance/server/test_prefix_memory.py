"""The prompt cache with its checkpoints stays within --prompt-cache-bytes, by its own count and by that of mlx.

CONFORMANCE_PROFILE=full sends 500 requests for each limit.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from conformance.doors.server.clients import load
from conformance.doors.server.process import CHAT, FAST, planted, serve
from conformance.doors.server.sessions import message
from conformance.doors.server.traffic import Body, Request
from conformance.server.prefix_faults import leave_batches_as_they_are, leave_checkpoints_out, tell_what_is_held
from conformance.subjects.prompts import Message
from conformance.subjects.tiny import ENDED, ENDED_TEMPLATE, save

pytestmark = pytest.mark.contract("C11")

N = 500 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 99
CLIENTS = 3
# One prompt with few checkpoints, a few prompts, and many.
LIMITS = (400_000, 1_500_000, 6_000_000)
# mlx leaves an array up to 16 KiB of a longer buffer. The small states of a recurrent layer may have that, not its
# large ones of 64 KiB.
SLACK = 0.25
LARGE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3_next", tmp_path_factory.mktemp("model"), ENDED_TEMPLATE, **ENDED, **LARGE)


def conversation(rng: random.Random) -> list[Message]:
    """Each message is one of a few, and may end early, so that conversations differ at any place."""
    found = [message("system", 60, rng.randrange(3))]
    for turn in range(rng.randrange(1, 4)):
        one = message(("user", "assistant")[turn % 2], 30, 10 * turn + rng.randrange(3))
        found.append(one | {"content": one["content"][: rng.choice([20, 30])]})
    return [*found, message("user", 10, rng.randrange(5))]


def request(rng: random.Random) -> Request:
    alone: Body = {"seed": 1} if rng.random() < 0.3 else {}
    return Request(CHAT, {"messages": conversation(rng), "max_tokens": 2, **alone})


def complaints(limit: int, model: Path, folder: Path, *faults: Callable[[], None], n: int = N) -> list[str]:
    rng = random.Random(limit)
    options = ("--prompt-cache-size", "100", "--prompt-cache-bytes", str(limit))
    with serve(*options, model=model, env=FAST | planted(tell_what_is_held, folder, *faults)) as server:
        for _ in range(n // CLIENTS):
            answers = load(server, [request(rng) for _ in range(CLIENTS)], CLIENTS)
            assert {answer.status for answer in answers} == {200}
        told = requests.get(f"{server.url}/held", timeout=server.timeout).json()
    counted, used = max(each for each, _ in told), max(each for _, each in told) - told[0][1]
    assert counted > 0.9 * limit, "the limit is not reached"
    found = [f"{counted} bytes are counted"] if counted > limit else []
    return found + ([f"{used} bytes are used, and {counted} counted"] if used > (1 + SLACK) * limit else [])


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_holds(tmp_path: Path, model: Path, limit: int) -> None:
    assert complaints(limit, model, tmp_path) == []


@pytest.mark.planted
@pytest.mark.parametrize("fault", [leave_checkpoints_out, leave_batches_as_they_are])
def test_what_is_not_counted_is_found(tmp_path: Path, model: Path, fault: Callable[[], None]) -> None:
    assert "bytes are used" in str(complaints(LIMITS[0], model, tmp_path, fault, n=45))
