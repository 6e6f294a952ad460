"""The cases as tests of the suite: one test for the cases that differ in a length only."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.adapters import find
from conformance.judging.cases import BROKEN, HOLDS, Case, asked
from conformance.judging.column import ROWS

LENGTHS = re.compile(r", (a prompt of|a limit of|closed after|after) \d+( tokens)?")


def of(*parts: Any) -> pytest.MarkDecorator:
    """Give a test the ``cases`` of these modules, to ask through the adapter that fits the installed mlx-lm."""
    adapter = find()
    found: dict[str, list[Case]] = {}
    for case in (case for part in parts for case in part.cases(adapter)):
        found.setdefault(LENGTHS.sub("", case.id), []).append(case)
    return pytest.mark.parametrize(
        "cases",
        [
            pytest.param(cases, id=name, marks=pytest.mark.contract(ROWS[cases[0].contract].split()[0]))
            for name, cases in found.items()
        ],
    )


def check(cases: list[Case]) -> None:
    """Fail with each case that is broken. Skip if none holds."""
    outcomes = [asked(case) for case in cases]
    broken = [f"{outcome.about}: {outcome.said}\n{outcome.lines}" for outcome in outcomes if outcome.result == BROKEN]
    assert not broken, "\n".join(broken)
    if not any(outcome.result == HOLDS for outcome in outcomes):
        pytest.skip(f"{outcomes[0].result}: {outcomes[0].said}")
