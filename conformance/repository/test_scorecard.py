"""The report of a run with expectations, which the judge and the scorecard read, and the table that is made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.judging.results import ABSENT, BROKEN, HOLDS, INCONCLUSIVE, REFUSED, SKIPPED, Results, read
from conformance.scorecard import main

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = [pytest.mark.repository, pytest.mark.planted]
pytest_plugins = ["pytester"]

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
# Of 12 tests of C4, as many as pass with the series, and of none of C1.
SHOWN = """
| C1 snapshot | 🟢 0 | 🔴 0, 1 failed |
| C4 parity | 🟢 12 | 🔴 0, 3 failed, 1 wrong, 1 refused, 2 skipped, 5 not offered |
"""
HELD = '{{"nodeid": "contracts/test_c4_a.py::{}", "outcome": "passed", "user_properties": [], "longrepr": null}}\n'


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, near: bool) -> Results:
    """The report of TESTS with the expectations of this release, or of one near it."""

    def file(release: str, flavour: str) -> Path:
        path = pytester.path / f"{'0' if near else release}-{flavour}.txt"
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


def test_each_outcome(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(pytester, monkeypatch, near=False)
    assert [(found[test].outcome, found[test].message) for test in CASES] == [case[1:] for case in CASES.values()]
    assert (found["teardown"].outcome, found["teardown"].message) == (BROKEN, "after")
    asked = found["asked"]
    assert (asked.outcome, asked.message, asked.example) == (BROKEN, "token 7 is lost", "print(7)")
    assert (asked.asked, asked.ours, asked.cases) == ("C1 snapshot", True, {"a case": "lost"})
    assert found["expected"].expected == "Wrong: small numbers."
    assert found["test_other.py::import"].expected == "Not offered: it has no drafts."
    assert [one.message for one in found.values() if "no test is test_gone.py::test_it" in one.message]
    (pytester.path / "patched.jsonl").write_text("".join(map(HELD.format, range(12))))
    document = pytester.path / "releases.md"
    document.write_text("a\n<!-- scorecard -->\nold\n<!-- end scorecard -->\nb\n")
    assert main(["releases.md", "patched.jsonl", "stock.jsonl"]) == 0
    assert "**Not as expected**: stock has 5 failed.\n" in capsys.readouterr().out
    assert all(line in document.read_text() for line in SHOWN.splitlines())
    assert re.search(r"- stock: mlx-lm \S+, mlx \S+, .*[CG]PU, ", document.read_text())
    assert document.read_text().endswith("<!-- end scorecard -->\nb\n")
    main(["releases.md", "patched.jsonl"])
    assert "**As expected**: in patched no tests fail but those that should." in capsys.readouterr().out


def test_the_file_of_another_release_may_be_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(pytester, monkeypatch, near=True)
    assert (found["unexpected"].outcome, found["unexpected"].message) == (HOLDS, "")
    assert not [one.message for one in found.values() if "no test is" in one.message]
