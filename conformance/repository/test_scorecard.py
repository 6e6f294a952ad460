"""The report of a run, which the judge and the scorecard read, and what the scorecard makes of it."""

from __future__ import annotations

import json
import re

import pytest

from conformance import ROOT
from conformance.judging import results
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_SHOWN, REFUSED, SKIPPED
from conformance.scorecard.__main__ import ROWS, main

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = [pytest.mark.repository, pytest.mark.planted]
pytest_plugins = ["pytester"]

CONFTEST = """
from pathlib import Path
from conformance.expectations.plugin import Plugin
from conformance.judging import plugin as judging

def pytest_configure(config):
    config.addinivalue_line("markers", "asked(contract, promised): of the suite")
    config.pluginmanager.register(Plugin(Path("expected.txt")))
    config.pluginmanager.register(judging.Plugin(["stock"]))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(judging.Reports(Path("stock.jsonl")))
"""
TESTS = """
import pytest
from conformance.oracle import findings as ask

@pytest.mark.asked("C1 snapshot", promised=False)
def test_asked(): ask.broken("token 7 is lost", "print(7)", {"a case": "lost"})
def test_asserts(): assert 1 == 2, "it is wrong\\nand more"
def test_refused(): ask.refused(ValueError("no"))
def test_not_offered(): ask.not_offered("it")
def test_not_shown(): ask.not_shown("no drafts")
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
contracts/c4_parity/test_some.py::test_exp*
contracts/c4_parity/test_some.py::test_unexpected
test_gone.py::test_it

# No such API: it has no drafts.
test_other.py::import
"""
TOLD = {
    "asked": (BROKEN, "token 7 is lost", "print(7)"),
    "asserts": (BROKEN, "it is wrong", ""),
    "refused": (REFUSED, "ValueError: no", ""),
    "not_offered": (ABSENT, "it", ""),
    "not_shown": (NOT_SHOWN, "no drafts", ""),
    "skipped": (SKIPPED, "no such chip", ""),
    "expected": (BROKEN, "a small number", ""),
    "unexpected": (HOLDS, "[XPASS(strict)] Wrong: small numbers.", ""),
    "teardown": (BROKEN, "after", ""),
}
# Of 12 tests of C4, as many as pass with the series, and of none of C1.
SHOWN = """
| C1 snapshot | a restored cache is what it was | 🟢 0 | 🔴 0, 1 failed |
 | 🟢 12 | 🔴 0, 3 failed, 1 wrong, 1 refused, 3 skipped, 4 not offered |
"""


def test_each_outcome_is_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_other="from mlx_lm.nothing_like_it import drafts")
    folder, stock, patched = pytester.mkdir("contracts") / "c4_parity", "stock.jsonl", pytester.path / "patched.jsonl"
    folder.mkdir()
    (folder / "test_some.py").write_text(TESTS)
    (pytester.path / "expected.txt").write_text(EXPECTED)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "xdist", "-n", "2")
    found = results.read(pytester.path / stock)[1]
    told = {test.partition("::test_")[2]: one for test, one in found.items()}
    assert {test: (one.outcome, one.said, one.lines) for test, one in told.items() if test} == TOLD
    assert (told["asked"].asked, told["asked"].promised, told["asked"].cases) == (
        "C1 snapshot",
        False,
        {"a case": "lost"},
    )
    assert told["expected"].expected == "Wrong: small numbers."
    (stale,) = (one.said for test, one in found.items() if "expected.txt" in test)
    assert stale.endswith("expected.txt:5: no test is test_gone.py::test_it")
    holds = [{"test": f"contracts/c4_parity/test_a.py::{n}", "outcome": HOLDS} for n in range(12)]
    patched.write_text("".join(f"{json.dumps(line)}\n" for line in holds))
    document = pytester.path / "releases.md"
    document.write_text("a\n<!-- scorecard -->\nold\n<!-- end scorecard -->\nb\n")
    assert main([str(document), str(patched), stock]) == 0
    assert "**Not as expected**: stock has 5 failed.\n" in capsys.readouterr().out
    assert all(line in document.read_text() for line in SHOWN.splitlines())
    assert re.search(r"- stock: mlx-lm \S+, mlx \S+, .*[CG]PU, ", document.read_text())
    assert document.read_text().endswith("<!-- end scorecard -->\nb\n")
    main([str(document), str(patched)])
    assert "**As expected**: in patched no tests fail but those that should." in capsys.readouterr().out


def test_the_document_has_a_line_of_each_contract() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    (found,) = re.findall(r"<!-- scorecard -->\n(.*?)<!-- end scorecard -->", text, re.DOTALL)
    lines = [line.strip("| ").split(" | ")[:2] for line in found.splitlines() if line.startswith("| ")]
    assert lines[2:] == [list(row) for row in ROWS.items()]
