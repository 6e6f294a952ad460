"""The tests of a stage are there, and they are what holds after it."""

from __future__ import annotations

import pytest

from conformance import ROOT
from conformance.stages.plugin import FILE, Plugin, order, read

pytestmark = pytest.mark.repository


def test_each_line_names_a_test_and_a_stage() -> None:
    lines = read(FILE.read_text())
    for test, since in lines.items():
        file, _, name = test.partition("::")
        assert since in order(), f"{test}: {since} is no stage"
        assert (ROOT / file).exists(), f"{file} is not there"
        assert not name or f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), f"{test} is not there"
    assert len(lines) == sum(1 for line in FILE.read_text().splitlines() if not line.startswith("#")), "a test twice"


def test_the_narrowest_line_counts() -> None:
    plugin = Plugin("one", read("# a head\none a/test_b.py\ntwo a/test_b.py::test_x[1]\n"), ["one", "two", "three"])
    nodeids = ["a/test_a.py::test_w", "a/test_b.py::test_x[1]", "a/test_b.py::test_y"]
    assert [one for one in nodeids if plugin.holds(one)] == nodeids[2:]
