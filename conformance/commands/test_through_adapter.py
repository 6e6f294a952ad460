"""The options and fields that turn drafting on, asked through the adapter that fits, as scripts/judge.sh does."""

from __future__ import annotations

from conformance.judging import commands, tests
from conformance.judging.cases import Case


@tests.of(commands)
def test_holds(cases: list[Case]) -> None:
    tests.check(cases)
