"""Random programs on every kind of prompt cache, compared with lists of tokens, in any tree.

CONFORMANCE_PROFILE=full runs 2000 programs for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conformance.adapters import Adapters
from conformance.caches.kinds import BATCHES, KINDS, rests_on, small_steps
from conformance.caches.machine import run


@pytest.fixture(autouse=True)
def short(uncompiled: None) -> Iterator[None]:
    with small_steps():
        yield


@pytest.mark.asked("C4 blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(kind: str, adapter: Adapters, about: Callable[..., None]) -> None:
    """What each token of a block sees is what single tokens see."""
    about(kind, *rests_on(kind))
    run(kind, adapter)


@pytest.mark.asked("C2 trim")
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.drops])
def test_trim(kind: str, adapter: Adapters, about: Callable[..., None]) -> None:
    """What can_trim allows, trim drops exactly, and says so."""
    about(kind, *rests_on(kind))
    run(kind, adapter, "trim")


@pytest.mark.asked("C1 snapshot")
@pytest.mark.parametrize("kind", KINDS)
def test_snapshot(kind: str, adapter: Adapters, about: Callable[..., None]) -> None:
    """A cache that is restored behaves like one that never saw the rest."""
    about(kind, *rests_on(kind))
    run(kind, adapter, "trim", "snapshot")


@pytest.mark.asked("C10 rows of a cache")
@pytest.mark.parametrize("kind", BATCHES)
def test_rows(kind: str, adapter: Adapters, about: Callable[..., None]) -> None:
    """A row that stays in a batch sees what it saw, whatever joins and leaves."""
    about(kind, *rests_on(kind))
    run(kind, adapter, "rows")
