"""The scorecard shows what pytest's JUnit files say.

What is planted: each outcome that a test can have, in runs with the series and without it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.scorecard.__main__ import CONTRACTS, FAILED, NEEDED, PASSED, REST, ROWS, SKIPPED, cell, main, read

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

CONFTEST = """
from pathlib import Path
from conformance import conftest
from conformance.expectations.plugin import Plugin

pytest_collection_modifyitems = conftest.pytest_collection_modifyitems

def pytest_configure(config):
    config.addinivalue_line("markers", "contract(name): its row")
    config.addinivalue_line("markers", "selftest: of the suite")
    config.pluginmanager.register(Plugin(Path("expected.txt")), "expectations")
"""
TESTS = """
import pytest

@pytest.fixture
def before():
    assert False, "before"

@pytest.fixture
def after():
    yield
    assert False, "after"

@pytest.mark.contract("C3")
def test_marked():
    pass

@pytest.mark.parametrize("n", range(3))
def test_passes(n):
    pass

def test_fails():
    assert False, "it is wrong"

def test_expected():
    assert False

def test_unexpected():
    pass

def test_skipped():
    pytest.skip("no such chip")

def test_setup(before):
    pass

def test_teardown(after):
    pass
"""
EXPECTED = """# Wrong: small numbers.
contracts/c4_parity/test_some.py::test_expected
contracts/c4_parity/test_some.py::test_unexpected

# No such API: it has no drafts.
test_other.py::import
"""


@pytest.mark.planted
@pytest.mark.parametrize("how", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "two"])
def test_each_outcome_is_told(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: list[str]) -> None:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_other="from mlx_lm.nothing_like_it import drafts")
    folder = pytester.mkdir("contracts") / "c4_parity"
    folder.mkdir()
    (folder / "test_some.py").write_text(TESTS)
    (pytester.path / "expected.txt").write_text(EXPECTED)
    said = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--junit-xml=stock.xml", *how).outlines
    run = read(pytester.path / "stock.xml")
    told = {row: dict(counts) for row, counts in run.rows.items() if counts}
    c4 = {PASSED: 3, FAILED: 4, "wrong": 1, SKIPPED: 1}
    assert told == {"C3 exits": {PASSED: 1}, "C4 parity": c4, REST: {NEEDED: 1}}, said
    assert {reason for outcome, reason in run.why if outcome == FAILED} == {
        "AssertionError: it is wrong",
        "[XPASS(strict)] Wrong: small numbers.",
        'failed on setup with "AssertionError: before',
        'failed on teardown with "AssertionError: after',
    }
    assert re.match(r"mlx-lm \S+, mlx \S+, .*[CG]PU, ", run.on)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({PASSED: 4}, "🟢 all 4 pass"),
        ({PASSED: 4, NEEDED: 1}, "🟢 all 4 pass"),
        ({NEEDED: 1}, "⚪ needs the series"),
        ({}, "⚪ needs the series"),
        ({PASSED: 1}, "⚪ 1 of 4 pass; 3 need the series"),
        ({PASSED: 1, "wrong": 1, NEEDED: 1}, "🟡 1 of 4 pass; 1 wrong, 2 need the series"),
        ({"refused": 1, SKIPPED: 1}, "🟡 0 of 4 pass; 1 refused, 1 skipped, 2 need the series"),
        ({PASSED: 3, FAILED: 1}, "🔴 3 of 4 pass; 1 failed"),
        ({PASSED: 4, FAILED: 1}, "🔴 4 of 4 pass; 1 failed"),
    ],
)
def test_a_cell_counts_the_tests_of_the_row_with_the_series(told: dict[str, int], said: str) -> None:
    assert cell(Counter(told), 4) == said


def junit(folder: Path, name: str, *tests: str) -> str:
    """A file with a test of C4 for each of these elements."""
    cases = [
        f'<testcase classname="contracts.c4_parity.test_a" name="{i}">{one}</testcase>' for i, one in enumerate(tests)
    ]
    (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return str(folder / f"{name}.xml")


@pytest.mark.planted
def test_what_is_wrong_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, page = tmp_path / "releases.md", tmp_path / "page.md"
    document.write_text("a\n<!-- scorecard -->\nold\n<!-- end scorecard -->\nb\n")
    files = [junit(tmp_path, "patched", "", ""), junit(tmp_path, "stock", ""), junit(tmp_path, "patched-0.1", "")]
    write = ["--readme", str(document), "--page", str(page)]
    assert main([*files, *write]) == 0
    right = "**Nothing is wrong**: no test fails in patched, stock, patched-0.1 but those that are expected to."
    assert capsys.readouterr().out == f"{right}\n"
    assert page.read_text().splitlines()[2] == right
    text = document.read_text()
    assert text.startswith("a\n<!-- scorecard -->\n**Nothing is wrong**: no test fails in patched, stock but")
    assert (
        "| C4 parity | the tokens and log probabilities of plain decoding | 🟢 all 2 pass | ⚪ 1 of 2 pass; 1 n" in text
    )
    assert text.endswith("<!-- end scorecard -->\nb\n")
    files[1] = junit(tmp_path, "stock", '<failure message="a &lt; b"/>')
    assert main([*files, *write]) == 0
    assert capsys.readouterr().out == "**Something is wrong**: stock has 1 failed.\n"
    assert "stock: 1 failed. a &lt; b</summary><pre>contracts.c4_parity.test_a::0</pre>" in page.read_text()
    document.write_text("no markers")
    assert main([*files, *write]) == 1


def test_the_document_has_a_line_of_each_contract() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    (found,) = re.findall(r"<!-- scorecard -->\n(.*?)<!-- end scorecard -->", text, re.DOTALL)
    assert found.startswith(("**Nothing is wrong**: ", "**Something is wrong**: "))
    lines = [line.strip("| ").split(" | ")[:2] for line in found.splitlines() if line.startswith("| ")]
    assert lines[2:] == [list(row) for row in ROWS.items()]


def test_the_contracts_name_their_tests() -> None:
    """A section for each contract of the scorecard, in this order, with every file of its folder."""
    _, *sections = (ROOT / "docs" / "contracts.md").read_text("utf-8").split("\n## ")
    assert sections.pop().startswith("What exact means\n")
    assert [section.split("\n", 1)[0] for section in sections] == list(CONTRACTS)
    for row, section in zip(CONTRACTS, sections, strict=True):
        listed = set(re.findall(r"^- (conformance/\S+\.py):", section, re.MULTILINE))
        (folder,) = (ROOT / "conformance" / "contracts").glob(f"{row.split()[0].lower()}_*")
        own = {str(path.relative_to(ROOT)) for path in folder.glob("test_*.py")}
        assert own <= listed
        # The others have tests with the mark of this contract, or marks that are made from the names of the cases.
        marks = (f'mark.contract("{row.split()[0]}")', ".split()[0]))", "@tests.of(")
        for path in listed - own:
            assert any(mark in (ROOT / path).read_text("utf-8") for mark in marks), f"{path} has no test of {row}"
