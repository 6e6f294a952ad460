"""The cases as tests of the suite: one test for the cases that differ in a length only."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.adapters import find
from conformance.judging.caches import small_steps
from conformance.judging.cases import BROKEN, HOLDS, NOT_SHOWN, Case, asked
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
    """Fail with each case that is broken, or that is not asked while another holds. Skip if none holds."""
    with small_steps():
        outcomes = [asked(case) for case in cases]
    held = any(outcome.result == HOLDS for outcome in outcomes)
    fine = {HOLDS, NOT_SHOWN} if held else {outcome.result for outcome in outcomes} - {BROKEN}
    wrong = [f"{one.about}: {one.result}, {one.said}\n{one.lines}" for one in outcomes if one.result not in fine]
    assert not wrong, "\n".join(wrong)
    if not held:
        pytest.skip(f"{outcomes[0].result}: {outcomes[0].said}")
