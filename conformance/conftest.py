"""What every run prints, and the fixture model."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm import load

from conformance.demo import FIXTURE
from conformance.faults import Fault


def pytest_report_header() -> str:
    versions = f"mlx-lm {version('mlx-lm')} at {mlx_lm.__file__}, mlx {version('mlx')}"
    return f"{versions} on {mx.default_device()}"


@pytest.fixture(scope="session")
def fixture() -> tuple[Any, Any]:
    """The model of this repository and its tokenizer."""
    model, tokenizer = load(str(FIXTURE))
    return model, tokenizer


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """No compiled functions: the first use of each starts a C++ compiler for two seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a test that is marked with ``planted`` has to check, with the fault in place."""
    fault: Fault = request.param
    monkeypatch.setattr(*fault[1:])
    return fault[0]
