"""Expected failures are explained, and each stage of the series collects the tests that hold after it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from conformance import ROOT, stages
from conformance.expectations import FOLDER, Expectation, nearest, read
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository

FAULTS = (ROOT / "conformance" / "upstream" / "faults.toml").read_text("utf-8")
TITLES = set(tomllib.loads(FAULTS)["fault"])


def test_the_nearest_release(tmp_path: Path) -> None:
    for one in ("0.32.1", "0.32.2"):
        (tmp_path / f"{one}-stock.txt").touch()
    nearer = {"0.32.1": "0.32.1", "0.33.0": "0.32.2", "0.32.2.dev1": "0.32.1", "0": "0.32.1", "0.100.0": "0.32.2"}
    for version, release in nearer.items():
        assert nearest(version, "stock", tmp_path).name == f"{release}-stock.txt", version


def has_reason(one: Expectation) -> bool:
    """What is wrong has a section of docs/upstream.md."""
    section = re.search(r"docs/upstream\.md: (.*)\.$", one.reason)
    kind = one.reason.partition(": ")[0]
    known = section[1] in TITLES if section else kind != "Wrong"
    return known and kind in ("Not offered", "Refused", "Wrong")


def test_each_expectation_says_why() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in FOLDER.glob("*.txt")} == names
    assert not [one for path in FOLDER.glob("*.txt") for one in read(path) if not has_reason(one)]
    assert not read(FOLDER / f"{DEFAULT}-patched.txt"), "the series on the default release fails no test"


def test_each_line_of_a_stage_names_a_test() -> None:
    since = stages.read(stages.FILE.read_text())
    for test, stage in since.items():
        file, _, name = test.partition("::")
        assert stage in stages.order(), f"{test}: {stage} is no stage"
        assert (ROOT / file).exists(), f"{file} is not there"
        assert not name or f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), f"{test} is not there"


def test_the_narrowest_line_of_a_stage_counts() -> None:
    since = stages.read("# a head\none a/test_b.py\ntwo a/test_b.py::test_x[1]\n")
    first, last = (stages.Stage(stage, since, ["one", "two"]) for stage in ("one", "two"))
    tests = ["a/test_a.py::test_w", "a/test_b.py::test_x[1-a]", "a/test_b.py::test_y"]
    assert [test for test in tests if first.holds(test)] == tests[2:]
    assert all(last.holds(test) for test in tests)
    assert [first.pytest_ignore_collect(ROOT / "a" / name) for name in ("test_a.py", "test_b.py")] == [True, None]
