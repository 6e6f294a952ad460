"""Check the caches of the installed mlx-lm through the adapter that fits.

scripts/judge.sh checks the same on any tree, and also decoding, the commands and the server.
"""

from __future__ import annotations

import pytest
from mlx_lm.models import cache

from conformance.adapters import find
from conformance.judging import caches, cases, states
from conformance.judging.cases import BROKEN, HOLDS, Case, asked

pytestmark = pytest.mark.usefixtures("uncompiled")

ADAPTER = find()
CASES = [*caches.cases(ADAPTER), *states.cases(ADAPTER)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for kind in caches.KINDS for name in kind.classes}:
        if hasattr(getattr(cache, name, None), "step"):
            monkeypatch.setattr(getattr(cache, name), "step", caches.STEP)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id, marks=pytest.mark.contract(case.contract.split()[0])) for case in CASES]
)
def test_holds(case: Case) -> None:
    outcome = asked(case)
    if outcome.result not in (HOLDS, BROKEN):
        pytest.skip(f"{outcome.result}: {outcome.said}")
    assert outcome.result == HOLDS, f"{outcome.said}\n{outcome.lines}"


def test_every_contract_of_caches_is_asked() -> None:
    assert {case.contract for case in CASES} == {caches.BLOCKS, caches.TRIM, caches.SNAPSHOT}
    assert cases.NOT_OFFERED not in {asked(case).result for case in CASES[:: len(caches.KINDS)]}
