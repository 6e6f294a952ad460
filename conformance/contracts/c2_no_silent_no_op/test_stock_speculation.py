"""Speculative decoding with a draft model in any release, on each kind of cache: what no adapter is asked already.

It uses no name that only the series has, so it also runs on a stock release. C2 to C5 are the contracts of
docs/contracts.md: a cache that cannot be rolled back is refused, every exit leaves the same cache as plain decoding,
the tokens are those of plain decoding, and logits processors see the same history.
"""

from __future__ import annotations

import pytest

from conformance.subjects.decoded import FAMILIES as ADAPTED
from conformance.subjects.families import FAMILIES
from conformance.testing.decode.draft_model import CHECKS, complaints, refused

pytestmark = pytest.mark.usefixtures("uncompiled")

# test_through_adapter.py of C4 asks the others the same, with the same two draft models.
FAMILIES_HERE = [family for family in FAMILIES if family not in {one.name.replace(",", "") for one in ADAPTED}]
CASES = [
    pytest.param(check, family, id=f"{check}-{family}", marks=pytest.mark.contract(check.split()[0]))
    for check in CHECKS
    for family in (FAMILIES if check == "C4 no limit" else FAMILIES_HERE)
]


@pytest.mark.parametrize("family", FAMILIES)
def test_is_decoded(family: str) -> None:
    """C2 allows a refusal. With the series none is necessary."""
    assert not refused(family), f"speculative_generate_step refuses {family}"


@pytest.mark.parametrize(("check", "family"), CASES)
def test_holds(check: str, family: str) -> None:
    if refused(family):
        pytest.skip("refused, which test_is_decoded counts")
    assert complaints(check, family) == []
