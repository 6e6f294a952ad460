"""A server of each test file, the models that it loads, and the right answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.doors.server.process import Inside, inside
from conformance.doors.server.requests import Right
from conformance.subjects.tiny import save


@pytest.fixture(autouse=True)
def _uncompiled(uncompiled: None) -> None:
    pass


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Inside]:
    with inside("--draft-type", "none", *getattr(request.module, "OPTIONS", ())) as server:
        yield server


@pytest.fixture(scope="session")
def right() -> Right:
    return Right()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The fixture, a model with a sliding window, and a hybrid one."""
    folder: Path = tmp_path_factory.mktemp("models")
    return {"fixture": str(FIXTURE), **{name: str(save(name, folder)) for name in ("gemma3_text", "qwen3_next")}}
