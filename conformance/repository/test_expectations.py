"""Expected failures are named, explained and still failing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.expectations.files import FOLDER, kind, nearest
from conformance.expectations.plugin import Expectation, read
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

MODEL_FAULT = re.compile(r"Upstream model fault, (\w+): ")
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


@pytest.mark.parametrize(
    ("expected", "code", "said"),
    [
        (RIGHT, 0, ["1 passed, 3 xfailed", "Small numbers fail."]),
        (
            RIGHT + "\n".join(STALE),
            1,
            [f":{number}: no test is {line}" for number, line in enumerate(STALE, 8)],
        ),
        (MORE, 1, ["[XPASS(strict)] Small numbers fail."]),
        (
            RIGHT.replace("test_other.py::import\n", ""),
            1,
            ["FAILED test_other.py::import", "ModuleNotFoundError: No module named 'mlx_lm.nothing_like_it'"],
        ),
        (
            RIGHT.replace("# Small\n# numbers fail.\n", ""),
            4,
            ["expected.txt:4: an expectation needs its reason"],
        ),
    ],
    ids=["right", "stale", "passes", "cannot be imported", "without a reason"],
)
def test_what_a_file_expects(folder: pytest.Pytester, expected: str, code: int, said: list[str]) -> None:
    found, output = run(folder, expected)
    assert found == code, output
    for part in said:
        assert part in output


def test_two_processes_expect_the_same(folder: pytest.Pytester) -> None:
    code, said = run(folder, RIGHT + "\n".join(STALE), "-p", "xdist", "-n", "2")
    assert code == 1, said
    assert "3 failed, 1 passed, 3 xfailed" in said


def test_what_passes_is_no_failure_where_the_file_is_borrowed(folder: pytest.Pytester) -> None:
    (folder.path / "borrowed").touch()
    code, said = run(folder, f"{MORE}test_some.py::test_gone\n")
    assert code == 0, said
    assert "XPASS test_some.py::test_it[2]" in said
    # Any other failure still fails the run.
    assert run(folder, RIGHT.replace("test_some.py::test_it[1]\n", ""))[0] == 1


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.32.1", "0.32.1"),
        ("0.32.3.dev4", "0.32.2"),
        ("0.33.0", "0.32.2"),
        ("0.32.2.dev1", "0.32.1"),
        ("0.31.3", "0.32.1"),
        ("unknown", "0.32.1"),
        ("0.10.0", "0.32.1"),
    ],
)
def test_the_nearest_release(tmp_path: Path, version: str, release: str) -> None:
    assert nearest(version, "stock", tmp_path).name == f"{version}-stock.txt"
    for one in ("0.32.1", "0.32.2"):
        (tmp_path / f"{one}-stock.txt").touch()
    assert nearest(version, "stock", tmp_path).name == f"{release}-stock.txt"


def test_another_missing_name_is_an_error_of_the_file(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_other="from os import nothing_like_it")
    assert run(folder, RIGHT)[0] == 2


@pytest.mark.parametrize("part", [["test_some.py"], ["test_some.py::test_it[2]"], ["-k", "2"]], ids=str)
def test_a_part_of_the_tests_makes_no_id_stale(folder: pytest.Pytester, part: list[str]) -> None:
    assert run(folder, RIGHT, *part)[0] == 0


def too_much(expectations: list[Expectation]) -> list[Expectation]:
    """The expectations that the patched default release must not have: all but named faults of a model file."""
    named = [(one, MODEL_FAULT.match(one.reason)) for one in expectations]
    return [one for one, match in named if not match or f"[{match[1]}-" not in one.id]


def test_the_series_expects_only_faults_of_upstreams_models() -> None:
    assert too_much(read(FOLDER / f"{DEFAULT}-patched.txt")) == []


@pytest.mark.planted
@pytest.mark.parametrize(
    ("id_", "reason"),
    [
        ("test_parity.py::test_greedy[rename]", "It is slow."),
        ("test_exits.py::test_exit[llama-by_close]", "Upstream model fault, plamo3: a mask."),
        ("test_architectures.py::test_parity*", "Upstream model fault, plamo3: a mask."),
    ],
)
def test_too_much_is_found(id_: str, reason: str) -> None:
    assert len(too_much([Expectation("", id_, reason)])) == 1


def unsaid(expectations: list[Expectation], titles: set[str]) -> list[str]:
    """The reasons without a kind, or with a section of docs/upstream.md that does not exist."""
    named = [(one, re.search(r"docs/upstream\.md: (.*)\.$", one.reason)) for one in expectations]
    wrong = [one.where for one, match in named if not kind(one.reason) or (match and match[1] not in titles)]
    return wrong + [one.where for one, match in named if kind(one.reason) == "wrong" and not match]


TITLES = set(re.findall(r"^### (.*)$", (ROOT / "docs" / "upstream.md").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_each_reason_says_whether_it_is_missing_wrong_or_refused(path: Path) -> None:
    assert unsaid(read(path), TITLES) == []


@pytest.mark.planted
@pytest.mark.parametrize(
    "reason",
    ["It has no drafts.", "Wrong: a mask.", "Wrong: a mask. docs/upstream.md: No such section.", "New in 9.9.9"],
)
def test_a_reason_that_does_not_say_is_found(reason: str) -> None:
    assert "here" in unsaid([Expectation("here", "test_a.py::import", reason)], TITLES)


def test_there_is_a_file_for_each_release_and_flavour() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in FOLDER.glob("*.txt")} == names
