"""A server of each test file, and the right answers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from conformance.doors.server.process import Inside, inside
from conformance.doors.server.requests import Right


@pytest.fixture(autouse=True)
def _uncompiled(uncompiled: None) -> None:
    pass


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Inside]:
    # A release has no drafts.
    without = ("--draft-type", "none") if find_spec("mlx_lm.draft") else ()
    with inside(*without, *getattr(request.module, "OPTIONS", ())) as server:
        yield server


@pytest.fixture(scope="session")
def right() -> Right:
    return Right()
