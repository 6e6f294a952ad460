"""A row of a batch whose strategy raises on the first rank ends on all ranks at the same step.

A deadlock fails after a time limit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.contracts.c9_ranks_agree.batch_ranks import PROMPTS, N
from conformance.testing.commands.launch import Stuck, run
from conformance.testing.decode.batches import alone
from conformance.testing.models.architectures import build

LIMIT = 200.0


def decoded(folder: Path, *args: str, limit: float = LIMIT) -> list[Any]:
    command = [sys.executable, "-m", "conformance.contracts.c9_ranks_agree.batch_ranks", *args]
    return [json.loads(out) for out in run(command, folder, limit)]


@pytest.mark.parametrize(("method", "at"), [("observe", "1"), ("propose", "1"), ("accept", "0")])
def test_a_failing_row_ends_alike(tmp_path: Path, method: str, at: str) -> None:
    first, second = decoded(tmp_path, method, at)
    assert first == second
    failed, other = first
    right = [alone(build("llama"), prompt, N).tokens for prompt in PROMPTS]
    assert failed[-1][1] == "error"
    assert [token for token, _ in failed[:-1]] == right[0][: len(failed) - 1]
    assert [token for token, _ in other] == right[1]


@pytest.mark.planted
def test_a_row_that_ends_before_the_others_hear_is_found(tmp_path: Path) -> None:
    with pytest.raises((Stuck, RuntimeError)):
        decoded(tmp_path, "--alone", "observe", "1", limit=40.0)
