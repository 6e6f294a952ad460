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

def pytest_addoption(parser):
    parser.addini("borrowed", "whether the file is of another release")

def pytest_configure(config):
    config.pluginmanager.register(Plugin(Path("expected.txt"), not config.getini("borrowed")))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_it(n):
    assert n == 2
"""
RIGHT = """# It has no drafts.
test_other.py::import

# Small
# numbers fail.
test_some.py::test_it[0]
test_some.py::test_it[1]
"""
STALE = ["test_some.py::test_gone", "test_gone.py::test_it*", "test_some.py::test_it[3]"]
MORE = RIGHT.replace("test_it[1]", "test_it*")
SENTENCES = [f":{number}: no test is {line}" for number, line in enumerate(STALE, 8)]


@pytest.mark.parametrize(
    ("expected", "arguments", "code", "says"),
    [
        # A part of the tests makes no id stale.
        (RIGHT, ["test_some.py::test_it[2]"], 0, []),
        (MORE + "\n".join(STALE), [], 1, ["4 failed, 3 xfailed", "[XPASS(strict)] Small numbers fail.", *SENTENCES]),
        (RIGHT.replace("# Small\n# numbers fail.\n", ""), [], 4, [":4: an expectation needs its reason"]),
        # What passes is no failure where the file is of another release.
        (f"{MORE}test_some.py::test_gone\n", ["-o", "borrowed=1"], 0, ["XPASS test_some.py::test_it[2]"]),
    ],
)
def test_what_a_file_expects(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    expected: str,
    arguments: list[str],
    code: int,
    says: list[str],
) -> None:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some=TESTS, test_other="from mlx_lm.nothing_like_it import drafts")
    (pytester.path / "expected.txt").write_text(expected)
    done = pytester.runpytest_inprocess("-q", "-rfExX", "-p", "no:cacheprovider", *arguments)
    assert done.ret == code
    assert all(sentence in f"{done.outlines}{done.errlines}" for sentence in says)


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
