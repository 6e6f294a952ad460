"""C1, C2 and C4 of the caches, asked through the adapter that fits, as scripts/judge.sh does."""

from __future__ import annotations

import pytest

from conformance.judging import caches, rows, states, tests
from conformance.judging.cases import Case

pytestmark = pytest.mark.usefixtures("uncompiled")


@tests.of(caches, rows, states)
def test_holds(cases: list[Case]) -> None:
    tests.check(cases)
