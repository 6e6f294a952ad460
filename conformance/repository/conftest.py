"""Copies of this repository, in paths with spaces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance.repository.clones import Clone

NAME = "a path with spaces"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A copy without a checkout."""
    return Clone.made(tmp_path / NAME)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy without a checkout, for commands that change nothing."""
    return Clone.made(tmp_path_factory.mktemp("untouched") / NAME)


@pytest.fixture(scope="session")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    made = Clone.made(tmp_path_factory.mktemp("applied") / NAME)
    made.apply()
    # Few files are copied sooner than many.
    made.git("gc", "--quiet")
    return made


@pytest.fixture
def applied(applied_once: Clone, tmp_path: Path) -> Clone:
    """A copy with the checkout of the default release, which takes seconds to make."""
    return Clone(shutil.copytree(applied_once.root, tmp_path / NAME, symlinks=True))
