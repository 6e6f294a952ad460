"""Prefixes that the server has cached, asked through the adapter that fits, as scripts/judge.sh does."""

from __future__ import annotations

import pytest

from conformance.judging import prefixes, tests
from conformance.judging.cases import Case

pytestmark = pytest.mark.usefixtures("uncompiled")


@tests.of(prefixes)
def test_holds(cases: list[Case]) -> None:
    tests.check(cases)
