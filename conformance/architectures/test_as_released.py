"""Without drafts every architecture computes what it does in the release, bit for bit.

The series touches model files. Parity with plain decoding of the same tree cannot show a fault that both have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.recurrent_gemma import RGLRU

from conformance.series.patches import commits, unpack
from conformance.testing.faults.planted import planted
from conformance.testing.models.architectures import logits, runnable

pytestmark = [pytest.mark.patched_source, pytest.mark.usefixtures("uncompiled")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a package beside mlx_lm: the release without the series."""
    folder, name = tmp_path_factory.mktemp("released"), "mlx_lm_as_released"
    package = (unpack(commits()[0], folder) / "mlx_lm").rename(folder / name)
    for path in package.rglob("*.py"):
        # A few import with the name of the package.
        path.write_text(path.read_text("utf-8").replace("from mlx_lm.", f"from {name}."), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield name


@pytest.mark.parametrize("name", runnable())
def test_the_logits_are_those_of_the_release(name: str, released: str) -> None:
    assert mx.array_equal(logits(name), logits(name, released)).item()


rglru = RGLRU.__call__


def a_little_more(self: RGLRU, *args: Any, **kwargs: Any) -> Any:
    made, state = rglru(self, *args, **kwargs)
    return 1.0001 * made, state


@pytest.mark.planted
@planted(("recurrent_gemma", RGLRU, "__call__", a_little_more))
def test_a_planted_fault_is_found(where: str, released: str) -> None:
    assert not mx.array_equal(logits(where), logits(where, released)).item()
