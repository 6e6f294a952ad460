"""The tests of a stage are there, and they are all that is collected after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

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


NODEIDS = ["a/test_a.py::test_w", "a/test_b.py::test_x[1]", "a/test_b.py::test_y", "a/test_c.py::test_z"]


@pytest.mark.parametrize(
    ("stage", "lines", "kept"),
    [
        ("one", "# a head\none a/test_a.py\ntwo a/test_b.py::test_x\n", NODEIDS[:1]),
        ("two", "one a/test_a.py\ntwo a/test_b.py::test_x\n", NODEIDS[:2]),
        ("three", "one a/test_a.py\n", NODEIDS),
        # The narrowest line counts.
        ("one", "one a/test_b.py\ntwo a/test_b.py::test_x[1]\n", NODEIDS[2:3]),
    ],
)
def test_what_holds_is_collected(stage: str, lines: str, kept: list[str]) -> None:
    items: Any = [SimpleNamespace(nodeid=nodeid) for nodeid in NODEIDS]
    config = cast(Any, SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None)))
    Plugin(stage, read(lines), ["one", "two", "three"]).pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == kept
