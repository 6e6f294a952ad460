"""Expected failures are named, explained and still failing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.expectations.files import FOLDER, KINDS, kind, nearest
from conformance.expectations.plugin import Expectation, read
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

MODEL_FAULT = re.compile(r"Upstream model fault, (\w+): ")
TITLES = set(re.findall(r"^### (.*)$", (ROOT / "docs" / "upstream.md").read_text(), re.MULTILINE))
CONFTEST = """
from pathlib import Path
from conformance.expectations.plugin import Plugin

def pytest_configure(config):
    strict = not Path("borrowed").exists()
    config.pluginmanager.register(Plugin(Path("expected.txt"), strict))
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


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some=TESTS, test_other="from mlx_lm.nothing_like_it import drafts")
    return pytester


def run(folder: pytest.Pytester, expected: str, *arguments: str) -> tuple[int, str]:
    (folder.path / "expected.txt").write_text(expected)
    done = folder.runpytest_inprocess("-q", "-rfExX", "-p", "no:cacheprovider", *arguments)
    return int(done.ret), f"{done.outlines}{done.errlines}"


def test_what_a_file_expects(folder: pytest.Pytester) -> None:
    assert run(folder, RIGHT)[0] == 0
    code, said = run(folder, RIGHT + "\n".join(STALE), "-p", "xdist", "-n", "2")
    assert code == 1
    assert "3 failed, 1 passed, 3 xfailed" in said
    assert all(f":{number}: no test is {line}" in said for number, line in enumerate(STALE, 8))
    code, said = run(folder, MORE)
    assert (code, "[XPASS(strict)] Small numbers fail." in said) == (1, True)
    code, said = run(folder, RIGHT.replace("# Small\n# numbers fail.\n", ""))
    assert (code, "expected.txt:4: an expectation needs its reason" in said) == (4, True)


def test_a_file_that_cannot_be_imported_is_one_test(folder: pytest.Pytester) -> None:
    """Where it is mlx-lm that lacks a name."""
    code, said = run(folder, RIGHT.replace("test_other.py::import\n", ""))
    assert code == 1
    assert "FAILED test_other.py::import" in said
    assert "ModuleNotFoundError: No module named 'mlx_lm.nothing_like_it'" in said
    folder.makepyfile(test_other="from os import nothing_like_it")
    assert run(folder, RIGHT)[0] == 2


def test_what_passes_is_no_failure_where_the_file_is_borrowed(folder: pytest.Pytester) -> None:
    (folder.path / "borrowed").touch()
    code, said = run(folder, f"{MORE}test_some.py::test_gone\n")
    assert code == 0, said
    assert "XPASS test_some.py::test_it[2]" in said
    # Any other failure still fails the run.
    assert run(folder, RIGHT.replace("test_some.py::test_it[1]\n", ""))[0] == 1


@pytest.mark.parametrize("part", [["test_some.py"], ["test_some.py::test_it[2]"], ["-k", "2"]], ids=str)
def test_a_part_of_the_tests_makes_no_id_stale(folder: pytest.Pytester, part: list[str]) -> None:
    assert run(folder, RIGHT, *part)[0] == 0


def test_the_nearest_release(tmp_path: Path) -> None:
    for one in ("0.32.1", "0.32.2"):
        (tmp_path / f"{one}-stock.txt").touch()
    nearer = {"0.32.1": "0.32.1", "0.32.3.dev4": "0.32.2", "0.33.0": "0.32.2", "0.32.2.dev1": "0.32.1"}
    nearer |= {"0.31.3": "0.32.1", "unknown": "0.32.1", "0.10.0": "0.32.1"}
    assert {version: nearest(version, "stock", tmp_path).name for version in nearer} == {
        version: f"{release}-stock.txt" for version, release in nearer.items()
    }


def wrong(one: Expectation, patched: bool) -> str:
    """What is wrong with an expectation, in a sentence."""
    section, of_a_model = re.search(r"docs/upstream\.md: (.*)\.$", one.reason), MODEL_FAULT.match(one.reason)
    if not kind(one.reason):
        return f"{one.where}: the reason begins with none of {', '.join(KINDS)}"
    if section and section[1] not in TITLES:
        return f"{one.where}: docs/upstream.md has no section {section[1]!r}"
    if kind(one.reason) == "wrong" and not section:
        return f"{one.where}: the reason names no section of docs/upstream.md"
    if patched and not (of_a_model and f"[{of_a_model[1]}-" in one.id):
        return f"{one.where}: with the series only a fault of one model file may be expected"
    return ""


def test_each_expectation_says_why() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in FOLDER.glob("*.txt")} == names
    found = [(one, path.stem == f"{DEFAULT}-patched") for path in FOLDER.glob("*.txt") for one in read(path)]
    said = [sentence for one, patched in found if (sentence := wrong(one, patched))]
    assert not said, "\n".join(said)
