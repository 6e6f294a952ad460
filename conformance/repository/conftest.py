"""Copies of this repository, in paths with spaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.repository.clones import NAME, Clone


@pytest.fixture(scope="session")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.at(tmp_path_factory.mktemp("applied") / NAME)


@pytest.fixture
def clone(applied_once: Clone, tmp_path: Path) -> Clone:
    """A copy without a checkout."""
    return applied_once.copy(tmp_path / "clone", "mlx-lm-*")


@pytest.fixture
def applied(applied_once: Clone, tmp_path: Path) -> Clone:
    """A copy with the checkout of the default release, which takes seconds to make."""
    return applied_once.copy(tmp_path / "applied")
