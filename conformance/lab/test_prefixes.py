"""The measurement of prefixes, with a short session. No test depends on times of this machine."""

from __future__ import annotations

import pytest

from conformance.doors.server.process import FAST
from conformance.lab.bench import prefixes
from conformance.lab.bench.prefixes import NAMES, QUICK, STOCK, WITH, WITHOUT


@pytest.mark.repository
def test_what_cannot_be_trimmed_feeds_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release feeds most prompts of such a model anew, if they are asked alone: so the counts can differ."""
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    hybrid = NAMES[2]
    results = prefixes.every([hybrid], QUICK)
    for door in prefixes.DOORS:
        assert prefixes.ratio(results, hybrid, door) <= 1.3
        # The retry.
        assert results[hybrid, door].fed[WITH][-2] == 1
    alone = results[hybrid, "alone"]
    assert alone.fed[STOCK] == alone.fed[WITHOUT]
    assert alone.fed[STOCK][-4:] == alone.prompts[-4:]
