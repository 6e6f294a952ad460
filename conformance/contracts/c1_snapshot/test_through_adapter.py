"""C1, C2 and C4 of the caches, asked through the adapter that fits, as scripts/judge.sh does."""

from __future__ import annotations

import pytest
from mlx_lm.models import cache

from conformance.judging import caches, rows, states, tests
from conformance.judging.cases import Case

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for kind in caches.KINDS for name in kind.classes}:
        if hasattr(getattr(cache, name, None), "step"):
            monkeypatch.setattr(getattr(cache, name), "step", caches.STEP)


@tests.of(caches, rows, states)
def test_holds(cases: list[Case]) -> None:
    tests.check(cases)
