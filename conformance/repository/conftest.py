"""Copies of this repository, in paths with spaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.repository.clones import Clone

NAME = "a path with spaces"


@pytest.fixture(scope="session")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.at(tmp_path_factory.mktemp("applied") / NAME, applied=True)


@pytest.fixture(scope="session")
def clone_once(applied_once: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.at(tmp_path_factory.mktemp("clone") / NAME, applied_once.root)


@pytest.fixture
def clone(clone_once: Clone) -> Iterator[Clone]:
    """A copy without a checkout."""
    yield clone_once
    clone_once.restore()


@pytest.fixture
def applied(applied_once: Clone) -> Iterator[Clone]:
    """A copy with the checkout of the default release, which takes seconds to make."""
    yield applied_once
    applied_once.restore()
