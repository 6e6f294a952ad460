"""Expected failures are named, explained and still failing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.expectations.files import FOLDER, kind, nearest
from conformance.expectations.plugin import Expectation, read
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository

MODEL_FAULT = re.compile(r"Upstream model fault, (\w+): ")
CONFTEST = """
from pathlib import Path
from conformance.expectations.plugin import Plugin

def pytest_configure(config):
    strict = not Path(__file__).with_name("borrowed").exists()
    config.pluginmanager.register(Plugin(Path(__file__).with_name("expected.txt"), strict))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_it(n):
    assert n == 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("from mlx_lm.draft import nothing_like_it\n")
    (tmp_path / "mlx_lm").mkdir()
    (tmp_path / "mlx_lm" / "__init__.py").touch()
    return tmp_path


def run(folder: Path, expected: str, *arguments: str) -> tuple[int, str]:
    """Run the tests of a folder, without the plugins that take seconds to start."""
    (folder / "expected.txt").write_text(expected)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfExX", "--rootdir", ".", *arguments]
    env = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


RIGHT = """# It has no drafts.
test_other.py::import

# Small
# numbers fail.
test_some.py::test_it[0]
test_some.py::test_it[1]
"""


IN_ONE_PROCESS: list[str] = []
IN_TWO = ["-p", "xdist", "-n", "2"]


@pytest.mark.parametrize("how", [IN_ONE_PROCESS, IN_TWO])
def test_what_is_expected_is_no_failure(folder: Path, how: list[str]) -> None:
    code, said = run(folder, RIGHT, *how)
    assert code == 0, said
    assert "1 passed, 3 xfailed" in said
    assert "Small numbers fail." in said


STALE = ["test_some.py::test_gone", "test_gone.py::test_it*", "test_some.py::test_it[3]"]


@pytest.mark.parametrize("how", [IN_ONE_PROCESS, IN_TWO])
def test_a_stale_id_is_a_failure(folder: Path, how: list[str]) -> None:
    code, said = run(folder, "\n".join([RIGHT.strip(), *STALE, ""]), *how)
    assert code == 1, said
    for number, line in enumerate(STALE, 8):
        assert f":{number}: no test is {line}" in said


def test_an_expected_failure_that_passes_is_a_failure(folder: Path) -> None:
    code, said = run(folder, RIGHT.replace("test_it[1]", "test_it*"))
    assert code == 1
    assert "[XPASS(strict)] Small numbers fail." in said


def test_what_passes_is_no_failure_where_the_file_is_borrowed(folder: Path) -> None:
    (folder / "borrowed").touch()
    code, said = run(folder, RIGHT.replace("test_it[1]", "test_it*") + "test_some.py::test_gone\n")
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


def test_what_cannot_be_imported_says_why(folder: Path) -> None:
    code, said = run(folder, RIGHT.replace("test_other.py::import\n", ""))
    assert code == 1
    assert "FAILED test_other.py::import" in said
    assert "ModuleNotFoundError: No module named 'mlx_lm.draft'" in said
    (folder / "test_other.py").write_text("from os import nothing_like_it\n")
    assert run(folder, RIGHT)[0] == 2


def test_a_part_of_the_tests_makes_no_id_stale(folder: Path) -> None:
    for part in (["test_some.py"], ["test_some.py::test_it[2]"], ["-k", "2"]):
        assert run(folder, RIGHT, *part)[0] == 0


def test_an_expectation_without_a_reason_is_an_error(folder: Path) -> None:
    code, said = run(folder, RIGHT.replace("# Small\n# numbers fail.\n", ""))
    assert code == 4
    assert "expected.txt:4: an expectation needs its reason" in said


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
