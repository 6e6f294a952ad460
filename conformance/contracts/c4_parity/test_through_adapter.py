"""C3, C4 and C5 of drafted decoding, asked through the adapter that fits, as scripts/judge.sh does."""

from __future__ import annotations

import pytest

from conformance.judging import decoding, tests
from conformance.judging.cases import Case

pytestmark = pytest.mark.usefixtures("uncompiled")


@tests.of(decoding)
def test_holds(cases: list[Case]) -> None:
    tests.check(cases)
