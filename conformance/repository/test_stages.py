"""The tests of a stage are there, and they are all that is collected after it."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance import ROOT
from conformance.stages.plugin import FILE, Plugin, order, read

pytestmark = pytest.mark.repository


def missing(lines: dict[str, str], stages: list[str]) -> list[str]:
    """The lines that name no test or no stage."""
    found = [f"{since} {test}" for test, since in lines.items() if since not in stages]
    for test in lines:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text()) if (ROOT / file).exists() else None
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} if tree else set()
        if tree is None or (name and name.split("[")[0].split("::")[-1] not in defined):
            found.append(test)
    return found


def test_each_line_names_a_test_and_a_stage() -> None:
    lines = read(FILE.read_text())
    assert missing(lines, order()) == []
    assert len(lines) == sum(1 for line in FILE.read_text().splitlines() if not line.startswith("#")), "a test twice"
    here = "conformance/repository/test_stages.py"
    assert missing({here: "core", f"{here}::missing": "core"}, ["core"]) == []
    assert missing({f"{here}::nothing": "core"}, ["core"]) == [f"{here}::nothing"]
    assert missing({here: "nosuch"}, ["core"]) == [f"nosuch {here}"]


def collected(stage: str, lines: str, nodeids: list[str]) -> list[str]:
    items: Any = [SimpleNamespace(nodeid=nodeid) for nodeid in nodeids]
    config = cast(Any, SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None)))
    Plugin(stage, read(lines), ["one", "two", "three"]).pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items]


def test_what_holds_is_collected() -> None:
    lines = "# a head\none a/test_a.py\ntwo a/test_b.py::test_x\n"
    nodeids = ["a/test_a.py::test_w", "a/test_b.py::test_x[1]", "a/test_b.py::test_y", "a/test_c.py::test_z"]
    assert collected("one", lines, nodeids) == nodeids[:1]
    assert collected("two", lines, nodeids) == nodeids[:2]
    assert collected("three", lines, nodeids) == nodeids
    assert collected("one", "one a/test_b.py::test_x[1]\n", [*nodeids, "a/test_b.py::test_x[2-11]"]) == nodeids[1:2]
    assert collected("one", "one a/test_b.py::test_x[a-b]\n", ["a/test_b.py::test_x[c-a-b]"]) != []
    assert collected("one", "one a/test_b.py\ntwo a/test_b.py::test_x[1]\n", nodeids) == nodeids[2:3], "the narrowest"
    with pytest.raises(pytest.UsageError, match="one, two, three"):
        collected("four", lines, nodeids)
