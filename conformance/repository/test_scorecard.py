"""The report of a run, which the judge and the scorecard read, and what the scorecard makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.judging import results
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_SHOWN, REFUSED, SKIPPED
from conformance.scorecard.__main__ import FAILED, PASSED, REST, ROWS, main, read

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = [pytest.mark.repository, pytest.mark.planted]
pytest_plugins = ["pytester"]

CONFTEST = """
from pathlib import Path
from conformance.expectations.plugin import Plugin
from conformance.judging import plugin as judging

def pytest_configure(config):
    for name in ("asked(contract, promised)", "contract(name)"):
        config.addinivalue_line("markers", f"{name}: of the suite")
    config.pluginmanager.register(Plugin(Path("expected.txt")))
    config.pluginmanager.register(judging.Plugin(["stock"]))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(judging.Reports(Path("stock.jsonl")))
"""
TESTS = """
import pytest
from conformance.oracle import findings as ask

@pytest.mark.contract("C3")
def test_marked(record_property):
    record_property("about", "it")
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
def before(): assert False, "before"
@pytest.fixture
def after():
    yield
    assert False, "after"
def test_setup(before): pass
def test_teardown(after): pass
"""
EXPECTED = """# Wrong: small numbers.
contracts/c4_parity/test_some.py::test_expected
contracts/c4_parity/test_some.py::test_unexpected

# No such API: it has no drafts.
test_other.py::import
"""
TOLD = {
    "marked": (HOLDS, "", ""),
    "asked": (BROKEN, "token 7 is lost", "print(7)"),
    "asserts": (BROKEN, "it is wrong", ""),
    "refused": (REFUSED, "ValueError: no", ""),
    "not_offered": (ABSENT, "it", ""),
    "not_shown": (NOT_SHOWN, "no drafts", ""),
    "skipped": (SKIPPED, "no such chip", ""),
    "expected": (BROKEN, "a small number", ""),
    "unexpected": (HOLDS, "[XPASS(strict)] Wrong: small numbers.", ""),
    "setup": (BROKEN, "before", ""),
    "teardown": (BROKEN, "after", ""),
}


def test_each_outcome_is_told(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_other="from mlx_lm.nothing_like_it import drafts")
    folder = pytester.mkdir("contracts") / "c4_parity"
    folder.mkdir()
    (folder / "test_some.py").write_text(TESTS)
    (pytester.path / "expected.txt").write_text(EXPECTED)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "xdist", "-n", "2")
    told = {test.partition("::test_")[2]: one for test, one in results.read(pytester.path / "stock.jsonl")[1].items()}
    assert {test: (one.outcome, one.said, one.lines) for test, one in told.items() if test} == TOLD
    assert (told["marked"].about, told["asked"].asked, told["asked"].promised) == ("it", "C1 snapshot", False)
    assert told["asked"].cases == {"a case": "lost"}
    assert told["expected"].expected == "Wrong: small numbers."
    run = read(pytester.path / "stock.jsonl")
    c4 = {FAILED: 4, "wrong": 1, REFUSED: 1, SKIPPED: 3}
    rows = {row: dict(counts) for row, counts in run.rows.items() if counts}
    assert rows == {"C1 snapshot": {FAILED: 1}, "C3 exits": {PASSED: 1}, "C4 parity": c4, REST: {ABSENT: 1}}
    assert re.match(r"mlx-lm \S+, mlx \S+, .*[CG]PU, ", run.on)


def report(folder: Path, name: str, tests: dict[str, dict[str, str]]) -> str:
    """A file with the results of tests of C4."""
    lines = [{"test": f"contracts/c4_parity/test_a.py::{test}", **result} for test, result in tests.items()]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(folder / f"{name}.jsonl")


WRONG = {"outcome": BROKEN, "said": "a", "expected": "Wrong: small numbers."}
ROW = "| C4 parity | the tokens and log probabilities of plain decoding | 🟢 3 | "


@pytest.mark.parametrize(
    ("stock", "says", "shown"),
    [
        (
            {"a": {"outcome": HOLDS}, "b": WRONG},
            "**As expected**: in patched, stock no tests fail",
            "🟡 1, 1 wrong, 1 not",
        ),
        ({}, "**As expected**: ", "⚪ 0, 3 not offered |"),
        (
            {"a": {"outcome": BROKEN, "said": "why"}},
            "**Not as expected**: stock has 1 failed.",
            "🔴 0, 1 failed, 2 not",
        ),
    ],
)
def test_what_is_wrong_comes_first(
    stock: dict[str, dict[str, str]], says: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, page = tmp_path / "releases.md", tmp_path / "page.md"
    document.write_text("a\n<!-- scorecard -->\nold\n<!-- end scorecard -->\nb\n")
    patched = {name: {"outcome": HOLDS} for name in "abc"}
    files = [report(tmp_path, "patched", patched), report(tmp_path, "stock", stock)]
    assert main([*files, "--readme", str(document), "--page", str(page)]) == 0
    assert capsys.readouterr().out.startswith(says)
    text = document.read_text()
    assert text.startswith(f"a\n<!-- scorecard -->\n{says}")
    assert ROW + shown in text
    assert text.endswith("<!-- end scorecard -->\nb\n")
    assert page.read_text().splitlines()[2].startswith(says)
    assert ("1 failed. why\n\n    contracts/c4_parity/test_a.py::a\n" in page.read_text()) == ("failed" in says)


def test_the_document_has_a_line_of_each_contract() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    (found,) = re.findall(r"<!-- scorecard -->\n(.*?)<!-- end scorecard -->", text, re.DOTALL)
    lines = [line.strip("| ").split(" | ")[:2] for line in found.splitlines() if line.startswith("| ")]
    assert lines[2:] == [list(row) for row in ROWS.items()]
