"""Expected failures are named, explained and still failing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.expectations.plugin import FOLDER, Expectation, nearest, read
from conformance.judging.results import KINDS, kind
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

MODEL_FAULT = re.compile(r"Upstream model fault, (\w+): ")
FAULTS = (ROOT / "conformance" / "upstream" / "faults.toml").read_text()
TITLES = set(re.findall(r'^title = "(.*)"$', FAULTS, re.MULTILINE))
CONFTEST = """
from pathlib import Path
from conformance.expectations.plugin import Plugin

def pytest_configure(config):
    config.pluginmanager.register(Plugin(Path("expected.txt"), strict=False))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_it(n):
    assert n == 2
"""


# test_scorecard.py tests a file of the same release.
def test_the_file_of_another_release_may_be_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some=TESTS)
    (pytester.path / "expected.txt").write_text("# Why.\ntest_some.py::test_it*\ntest_some.py::test_gone\n")
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert done.ret == 0
    done.assert_outcomes(xfailed=2, xpassed=1)


def test_an_expectation_needs_its_reason(tmp_path: Path) -> None:
    (tmp_path / "expected.txt").write_text("# Why.\ntest_a.py::test_it\n\ntest_a.py::test_other\n")
    with pytest.raises(pytest.UsageError, match=r"expected.txt:4: an expectation needs its reason"):
        read(tmp_path / "expected.txt")


def test_the_nearest_release(tmp_path: Path) -> None:
    for one in ("0.32.1", "0.32.2"):
        (tmp_path / f"{one}-stock.txt").touch()
    nearer = {"0.32.1": "0.32.1", "0.33.0": "0.32.2", "0.32.2.dev1": "0.32.1", "0": "0.32.1", "0.100.0": "0.32.2"}
    for version, release in nearer.items():
        assert nearest(version, "stock", tmp_path).name == f"{release}-stock.txt", version


def wrong(one: Expectation, patched: bool) -> str:
    """What is wrong with an expectation, in a sentence."""
    row, of_a_model = re.search(r"docs/upstream\.md: (.*)\.$", one.reason), MODEL_FAULT.match(one.reason)
    if not kind(one.reason):
        return f"{one.where}: the reason begins with none of {', '.join(KINDS)}"
    if row and row[1] not in TITLES:
        return f"{one.where}: docs/upstream.md has no row {row[1]!r}"
    if kind(one.reason) == "wrong" and not row:
        return f"{one.where}: the reason names no row of docs/upstream.md"
    if patched and not (of_a_model and f"[{of_a_model[1]}-" in one.id):
        return f"{one.where}: with the series only a fault of one model file may be expected"
    return ""


def test_each_expectation_says_why() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in FOLDER.glob("*.txt")} == names
    found = [(one, path.stem == f"{DEFAULT}-patched") for path in FOLDER.glob("*.txt") for one in read(path)]
    said = [sentence for one, patched in found if (sentence := wrong(one, patched))]
    assert not said, "\n".join(said)
