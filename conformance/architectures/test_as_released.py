"""Without drafts every architecture computes what it does in the release, bit for bit.

The series touches model files. Parity with plain decoding of the same tree cannot show a fault that both have.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.recurrent_gemma import RGLRU

from conformance import ROOT
from conformance.architectures.as_released_logits import logits
from conformance.series.patches import commits, unpack
from conformance.testing.faults.planted import planted
from conformance.testing.models.architectures import runnable

pytestmark = [pytest.mark.patched_source, pytest.mark.usefixtures("uncompiled")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, mx.array]:
    """The logits of the release without the series, by architecture."""
    folder = tmp_path_factory.mktemp("released")
    tree, out = unpack(commits()[0], folder / "tree"), folder / "logits.npz"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)]), "MLX_DISABLE_COMPILE": "1"}
    module = "conformance.architectures.as_released_logits"
    done = subprocess.run(
        [sys.executable, "-m", module, str(out)], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0
    assert Path(done.stdout.strip()).is_relative_to(tree)
    made = mx.load(str(out))
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize("name", runnable())
def test_the_logits_are_those_of_the_release(name: str, released: Mapping[str, mx.array]) -> None:
    assert mx.array_equal(logits(name), released[name]).item()


rglru = RGLRU.__call__


def a_little_more(self: RGLRU, *args: Any, **kwargs: Any) -> Any:
    made, state = rglru(self, *args, **kwargs)
    return 1.0001 * made, state


@pytest.mark.planted
@planted(("recurrent_gemma", RGLRU, "__call__", a_little_more))
def test_a_planted_fault_is_found(where: str, released: Mapping[str, mx.array]) -> None:
    assert not mx.array_equal(logits(where), released[where]).item()
