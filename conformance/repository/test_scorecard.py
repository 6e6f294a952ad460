"""The report of a run with expectations, which the judge and the scorecard read, and the table that is made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.judging.results import ABSENT, BROKEN, HOLDS, INCONCLUSIVE, REFUSED, SKIPPED, Results, read
from conformance.scorecard import main

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = [pytest.mark.repository, pytest.mark.planted]
pytest_plugins = ["pytester"]

TESTS = """
import pytest
from conformance.oracle import findings as ask

@pytest.mark.asked("C1 snapshot", ours=True)
def test_asked(): ask.broken("token 7 is lost", "print(7)", {"a case": "lost"})
def test_asserts(): assert 1 == 2, "it is wrong\\nand more"
def test_refused(): ask.refused(ValueError("no"))
def test_not_offered(): ask.not_offered("it")
def test_inconclusive(): ask.not_shown("no drafts")
def test_skipped(): pytest.skip("no such chip")
def test_expected(): ask.broken("a small number")
def test_unexpected(): pass
@pytest.fixture
def after():
    yield
    assert False, "after"
def test_teardown(after): pass
"""
EXPECTED = """# Wrong: small
# numbers.
contracts/test_c4_some.py::test_exp*
contracts/test_c4_some.py::test_unexpected
test_gone.py::test_it

# Not offered: it has no drafts.
test_other.py::import
"""
SEEN = {
    "asked": (BROKEN, "token 7 is lost", "print(7)"),
    "asserts": (BROKEN, "it is wrong", ""),
    "refused": (REFUSED, "ValueError: no", ""),
    "not_offered": (ABSENT, "it", ""),
    "inconclusive": (INCONCLUSIVE, "no drafts", ""),
    "skipped": (SKIPPED, "no such chip", ""),
    "expected": (BROKEN, "a small number", ""),
    "unexpected": (HOLDS, "[XPASS(strict)] Wrong: small numbers.", ""),
    "teardown": (BROKEN, "after", ""),
}
# Of 12 tests of C4, as many as pass with the series, and of none of C1.
SHOWN = """
| C1 snapshot | 🟢 0 | 🔴 0, 1 failed |
| C4 parity | 🟢 12 | 🔴 0, 3 failed, 1 wrong, 1 refused, 2 skipped, 5 not offered |
"""
HELD: dict[str, Any] = {"outcome": "passed", "user_properties": [], "longrepr": None}


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, expected: str, near: bool = False) -> Results:
    """The report of TESTS with these expectations, of this release or of one near it."""

    def file(release: str, flavour: str) -> Path:
        path = pytester.path / f"{'0' if near else release}-{flavour}.txt"
        path.write_text(expected)
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
    found = run(pytester, monkeypatch, EXPECTED)
    assert {test: (found[test].outcome, found[test].message, found[test].example) for test in SEEN} == SEEN
    assert (found["asked"].asked, found["asked"].ours) == ("C1 snapshot", True)
    assert found["asked"].cases == {"a case": "lost"}
    assert found["expected"].expected == "Wrong: small numbers."
    assert found["test_other.py::import"].expected == "Not offered: it has no drafts."
    assert [one.message for one in found.values() if "no test is test_gone.py::test_it" in one.message]
    lines = (json.dumps(HELD | {"nodeid": f"contracts/test_c4_a.py::{n}"}) + "\n" for n in range(12))
    (pytester.path / "patched.jsonl").write_text("".join(lines))
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
    found = run(pytester, monkeypatch, EXPECTED, near=True)
    assert (found["unexpected"].outcome, found["unexpected"].message) == (HOLDS, "")
    assert not [one.message for one in found.values() if "no test is" in one.message]
