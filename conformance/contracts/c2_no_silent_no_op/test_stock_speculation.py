"""Speculative decoding with a draft model, as a release has it: what holds for each kind of cache, and what does not.

pytest conformance/contracts/c2_no_silent_no_op/test_stock_speculation.py
It uses no name that only the series has, so that a stock release can be asked the same. C2 to C5 are the contracts of
docs/exactness.md: a cache that cannot be rolled back is refused, every exit leaves what plain decoding leaves, the
tokens are those of plain decoding, and logits processors see the same history.
"""

from __future__ import annotations

import pytest

from conformance.testing.decode.draft_model import CHECKS, complaints, refused
from conformance.testing.models.families import FAMILIES

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.mark.parametrize("family", FAMILIES)
def test_is_decoded(family: str) -> None:
    """C2 allows a refusal; the series makes none necessary."""
    assert not refused(family), f"speculative_generate_step refuses {family}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("check", [pytest.param(name, marks=pytest.mark.contract(name.split()[0])) for name in CHECKS])
def test_holds(check: str, family: str) -> None:
    if refused(family):
        pytest.skip("refused, which test_is_decoded counts")
    assert complaints(check, family) == []
