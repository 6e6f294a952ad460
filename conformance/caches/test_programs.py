"""Random programs on every kind of prompt cache, compared with lists of tokens, in any tree.

CONFORMANCE_PROFILE=full runs 2000 programs for each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.adapters import Adapters
from conformance.caches.kinds import BATCHES, KINDS, NAMES
from conformance.caches.machine import run
from conformance.caches.program import STEP


@pytest.fixture
def asked(kind: str, about: Callable[..., None], uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind whose caches grow by few rows at a time."""
    # What a list holds, or the class without an option, may explain what is wrong with this one.
    about(kind, *[one for one in KINDS[kind].classes if one in KINDS and one != kind])
    for name in {name for each in KINDS.values() for name in each.classes}:
        if hasattr(NAMES.get(name), "step"):
            monkeypatch.setattr(NAMES[name], "step", STEP)
    return kind


@pytest.mark.asked("C4 blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(asked: str, adapter: Adapters) -> None:
    """What each token of a block sees is what single tokens see."""
    run(asked, adapter)


@pytest.mark.asked("C2 trim")
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.drops])
def test_trim(asked: str, adapter: Adapters) -> None:
    """What can_trim allows, trim drops exactly, and says so."""
    run(asked, adapter, "trim")


@pytest.mark.asked("C1 snapshot")
@pytest.mark.parametrize("kind", KINDS)
def test_snapshot(asked: str, adapter: Adapters) -> None:
    """A cache that is restored behaves like one that never saw the rest."""
    run(asked, adapter, "trim", "snapshot")


@pytest.mark.asked("C10 rows of a cache")
@pytest.mark.parametrize("kind", BATCHES)
def test_rows(asked: str, adapter: Adapters) -> None:
    """A row that stays in a batch sees what it saw, whatever joins and leaves."""
    run(asked, adapter, "rows")
