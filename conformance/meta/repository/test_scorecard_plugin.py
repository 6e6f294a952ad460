"""pytest --scorecard=FILE writes each outcome with its reason, and nothing where a test has no row.

What is planted: each outcome that a test can have, and a test in no row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import ROOT
from conformance.scorecard.cells import (
    EXPECTED,
    FAILED,
    LEFT_OUT,
    SKIPPED,
)

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository

CONFTEST = """
from pathlib import Path
import pytest
from conformance.expectations.plugin import Plugin as Expectations
from conformance.scorecard.plugin import Plugin
from conformance.scorecard.rows import Row

ROWS = (Row("import", "test_broken.py", "", ""), *(Row(name, "", "", "") for name in NAMES))

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.contract(item.originalname.removeprefix("test_")))

def pytest_configure(config):
    about = dict.fromkeys(("release", "flavour", "mlx-lm", "mlx", "device", "python"), "1")
    config.addinivalue_line("markers", "repository: about it")
    config.addinivalue_line("markers", "contract(name): its row")
    config.pluginmanager.register(Expectations(Path(__file__).with_name("expected.txt")), "expectations")
    config.pluginmanager.register(Plugin(Path(__file__).with_name("card.json"), about, ROWS), "scorecard")
"""
TESTS = """
import pytest
from conformance.testing.tally import TALLY

@pytest.fixture
def before():
    assert False, "before"

@pytest.fixture
def after():
    yield
    assert False, "after"

@pytest.mark.parametrize("n", range(3))
def test_passes(n):
    TALLY["tokens"] += 7

def test_fails():
    assert False, "it is wrong"

def test_expected():
    TALLY["examples"] += 2
    assert False

def test_unexpected():
    pass

def test_skipped():
    pytest.skip("no such chip")

@pytest.mark.skip(reason="not here")
def test_marked():
    pass

def test_setup(before):
    pass

def test_teardown(after):
    pass

def test_other():
    pass

@pytest.mark.repository
def test_here():
    pass
"""
EXPECTATIONS = """# Small numbers.
test_some.py::test_expected
test_some.py::test_unexpected
"""
NAMES = ["passes", "fails", "expected", "unexpected", "skipped", "marked", "setup", "teardown", "other", "here"]


def outcomes(folder: Path, *arguments: str, names: Sequence[str] = NAMES) -> tuple[str, dict[str, Any]]:
    """Run these tests without plugins that start slowly. Returns the output, and the rows of the file."""
    (folder / "conftest.py").write_text(f"NAMES = {list(names)}\n{CONFTEST}")
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_broken.py").write_text("import nothing_like_it\n")
    (folder / "expected.txt").write_text(EXPECTATIONS)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", *arguments]
    env = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True)
    card = folder / "card.json"
    return done.stdout + done.stderr, json.loads(card.read_text()) if card.exists() else {}


IN_ONE_PROCESS: list[str] = []
IN_TWO = ["-p", "xdist", "-n", "2"]


@pytest.mark.parametrize("how", [IN_ONE_PROCESS, IN_TWO])
def test_each_outcome_and_its_reason(tmp_path: Path, how: list[str]) -> None:
    said, card = outcomes(tmp_path, *how, "-k", "not other and not here")
    assert card["whole"], said
    assert f"scorecard: {tmp_path / 'card.json'}" in said
    got = {
        row: [(one["outcome"], one.get("reason", "").splitlines()[:1]) for one in tests.values()]
        for row, tests in card["rows"].items()
    }
    broken = got.pop("import")
    assert [outcome for outcome, _ in broken] == [FAILED]
    assert got == {
        "passes": [("passed", [])] * 3,
        "fails": [(FAILED, ["AssertionError: it is wrong"])],
        "expected": [(EXPECTED, ["Small numbers."])],
        "unexpected": [(FAILED, ["[XPASS(strict)] Small numbers."])],
        "skipped": [(SKIPPED, ["no such chip"])],
        "marked": [(SKIPPED, ["not here"])],
        "setup": [(FAILED, ["AssertionError: before"])],
        "teardown": [(FAILED, ["AssertionError: after"])],
        "other": [(LEFT_OUT, [])],
        # "here" is about the repository, so leaving it out does not count for a release.
    }
    assert {test["tokens"] for test in card["rows"]["passes"].values()} == {7}
    assert [test.get("examples") for test in card["rows"]["expected"].values()] == [2]


def test_what_was_not_reached_is_left_out(tmp_path: Path) -> None:
    _, card = outcomes(tmp_path, "-x", "--deselect", "test_some.py::test_marked", "--ignore", "test_broken.py")
    assert {one["outcome"] for row in ("expected", "marked", "other") for one in card["rows"][row].values()} == {
        LEFT_OUT
    }


def test_a_list_of_tests_leaves_no_file(tmp_path: Path) -> None:
    said, card = outcomes(tmp_path, "--collect-only")
    assert "scorecard: not written. Nothing was run." in said
    assert card == {}


def test_a_test_without_a_row_leaves_no_file(tmp_path: Path) -> None:
    said, card = outcomes(tmp_path, names=NAMES[:-1])
    assert "scorecard: not written. test_some.py::test_here falls in no row" in said
    assert card == {}
