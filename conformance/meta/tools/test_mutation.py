"""The mutation profile draws the same sample each time, and names the surviving mutants."""

from __future__ import annotations

import tomllib

import pytest

from conformance import ROOT
from conformance.mutation.__main__ import CAUGHT, REASONS, SUITE, SURVIVED, Mutant, drawn, folders, report

DIFF = "--- mutation diff ---\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n context\n-    n = 1\n+    n = 2\n"


def mutants(caught: int, survived: int) -> list[Mutant]:
    return [Mutant("x.py", 7, DIFF, outcome) for outcome in [CAUGHT] * caught + [SURVIVED] * survived]


@pytest.mark.parametrize(
    ("caught", "survived", "reasons", "code"),
    [
        (10, 0, {}, 0),
        (9, 1, {"n = 1 -> n = 2": "It is never read."}, 0),
        (9, 1, {}, 1),
        (8, 2, {"n = 1 -> n = 2": "It is never read."}, 1),
        (0, 0, {}, 1),
    ],
)
def test_what_survives_has_a_reason_and_is_little(
    caught: int, survived: int, reasons: dict[str, str], code: int
) -> None:
    said, lines = report(mutants(caught, survived), reasons)
    assert said == code
    assert lines[0].startswith(f"{caught} of {caught + survived} mutants are caught")
    assert ("NO REASON" in "\n".join(lines)) == (survived > 0 and not reasons)


def test_a_seed_draws_the_same_sample() -> None:
    jobs = [f"file:{i}" for i in range(100)]
    sample = drawn(jobs, 21, 7)
    assert len(sample) == 21
    assert sample == drawn(reversed(jobs), 21, 7) != drawn(jobs, 21, 8)
    assert drawn(jobs[:5], 21, 7) == set(jobs[:5])


def test_what_it_runs_is_there_and_each_reason_is_a_sentence() -> None:
    asked = folders("")
    assert all((ROOT / name).exists() for name in asked)
    assert all(set(folders(start)) <= set(asked) for start in SUITE)
    assert folders("mlx_lm/models/llama.py") == folders("mlx_lm/models/") != folders("mlx_lm/models/cache.py")
    reasons = tomllib.loads(REASONS.read_text())["reasons"]
    assert all(" -> " in change and reason.endswith(".") for change, reason in reasons.items())
