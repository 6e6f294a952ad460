"""Expected failures are explained, the lines of stages name tests, and a run reports what became of each test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from conformance import ROOT, expectations, stages
from conformance.judging.results import ABSENT, BROKEN, HOLDS, INCONCLUSIVE, REFUSED, SKIPPED, Results, read
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

FAULTS = (ROOT / "conformance" / "upstream" / "faults.toml").read_text("utf-8")
TITLES = set(tomllib.loads(FAULTS)["fault"])


def has_reason(one: expectations.Expectation) -> bool:
    """What is wrong has a section of docs/upstream.md."""
    section = re.search(r"docs/upstream\.md: (.*)\.$", one.reason)
    kind = one.reason.partition(": ")[0]
    known = section[1] in TITLES if section else kind != "Wrong"
    return known and kind in ("Not offered", "Refused", "Wrong")


def test_each_expectation_says_why() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in expectations.FOLDER.glob("*.txt")} == names
    assert not [
        one for path in expectations.FOLDER.glob("*.txt") for one in expectations.read(path) if not has_reason(one)
    ]
    assert not expectations.read(expectations.FOLDER / f"{DEFAULT}-patched.txt"), (
        "the series on the default release fails no test"
    )


def test_each_line_of_a_stage_names_a_test() -> None:
    since = stages.read(stages.FILE.read_text())
    for test, stage in since.items():
        file, _, name = test.partition("::")
        assert stage in stages.order(), f"{test}: {stage} is no stage"
        assert (ROOT / file).exists(), f"{file} is not there"
        assert not name or f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), f"{test} is not there"


# What a test does, and what is read of it: the outcome, and what it says.
CASES = {
    "asserts": ('assert 1 == 2, "it is wrong\\nand more"', BROKEN, "it is wrong"),
    "refused": ('ask.refused(ValueError("no"))', REFUSED, "ValueError: no"),
    "not_offered": ('ask.not_offered("it")', ABSENT, "it"),
    "inconclusive": ('ask.not_shown("no drafts")', INCONCLUSIVE, "no drafts"),
    "skipped": ('pytest.skip("no such chip")', SKIPPED, "no such chip"),
    "expected": ('ask.broken("a small number")', BROKEN, "a small number"),
    "unexpected": ("pass", HOLDS, "[XPASS(strict)] Wrong: small numbers."),
}
TESTS = """
import pytest
from conformance.oracle import findings as ask

@pytest.mark.asked("C1 snapshot", ours=True)
def test_asked(): ask.broken("token 7 is lost", "print(7)", {"a case": "lost"})
@pytest.fixture
def after():
    yield
    assert False, "after"
def test_teardown(after): pass
""" + "".join(f"def test_{name}(): {does}\n" for name, (does, *_) in CASES.items())
EXPECTED = """# Wrong: small
# numbers.
contracts/test_c4_some.py::test_exp*
contracts/test_c4_some.py::test_unexpected
test_gone.py::test_it

# Not offered: it has no drafts.
test_other.py::import
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The report of TESTS with the expectations of this release."""

    def file(release: str, flavour: str) -> Path:
        path = pytester.path / f"{release}-{flavour}.txt"
        path.write_text(EXPECTED)
        return path

    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr("conformance.plugin.nearest", file)
    pytester.makeconftest('pytest_plugins = ["conformance.plugin"]')
    pytester.makepyfile(test_other="from mlx_lm.nothing_like_it import drafts")
    (pytester.mkdir("contracts") / "test_c4_some.py").write_text(TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "--adapter=stock", "--report=stock.jsonl")
    return {test.partition("::test_")[2] or test: one for test, one in read(pytester.path / "stock.jsonl")[1].items()}


@pytest.mark.planted
def test_each_outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(pytester, monkeypatch)
    assert [(found[test].outcome, found[test].message) for test in CASES] == [case[1:] for case in CASES.values()]
    assert (found["teardown"].outcome, found["teardown"].message) == (BROKEN, "after")
    asked = found["asked"]
    assert (asked.outcome, asked.message, asked.example) == (BROKEN, "token 7 is lost", "print(7)")
    assert (asked.asked, asked.ours, asked.cases) == ("C1 snapshot", True, {"a case": "lost"})
    assert found["expected"].expected == "Wrong: small numbers."
    assert found["test_other.py::import"].expected == "Not offered: it has no drafts."
    assert [one.message for one in found.values() if "no test is test_gone.py::test_it" in one.message]
