"""The measurement of prefixes, with a short session and tiny models. No test depends on times of this machine.

The release is in it too. Asked alone, it feeds the prompts of hybrids and window models anew: so the counts can differ.
"""

from __future__ import annotations

import pytest

from conformance.doors.server.process import FAST
from conformance.lab.bench import prefixes
from conformance.lab.bench.prefix_session import FULL, NAMES, QUICK, session

pytestmark = pytest.mark.repository
HYBRIDS = NAMES[1:3]


@pytest.fixture(scope="module")
def results() -> prefixes.Results:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FAST.items():
            patch.setenv(name, value)
        return dict(prefixes.every(NAMES[:3], QUICK))


@pytest.mark.parametrize("door", prefixes.DOORS)
@pytest.mark.parametrize("name", HYBRIDS)
def test_what_cannot_be_trimmed_feeds_little_more(results: prefixes.Results, name: str, door: str) -> None:
    found = results[name, door]
    assert prefixes.ratio(results, name, door) <= 1.3
    # The retry.
    assert found.fed[prefixes.WITH][-2] == 1


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_release_alone_feeds_most_prompts_anew(results: prefixes.Results, name: str) -> None:
    found = results[name, "alone"]
    assert found.fed[prefixes.STOCK] == found.fed[prefixes.WITHOUT]
    assert found.fed[prefixes.STOCK][-4:] == found.prompts[-4:]


def test_the_answers_are_those_of_a_cold_server(results: prefixes.Results) -> None:
    assert {one.equal for one in results.values()} == {True}
    assert max(one.distance for one in results.values()) < 1e-4


def test_the_tables_have_a_line_for_each(results: prefixes.Results) -> None:
    asked = session(QUICK)
    assert len(prefixes.totals(results).splitlines()) == 2 + len(results)
    shown = prefixes.requests(results, asked, "fed").splitlines()
    assert [line.split(" | ")[0] for line in shown[2:]] == [f"| {what}" for what in asked]


def test_the_session_is_the_same_every_time() -> None:
    assert session(QUICK) == session(QUICK)
    assert session(QUICK) != session(FULL)
