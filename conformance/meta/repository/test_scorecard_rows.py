"""Each test belongs to one row of the scorecard, and docs/contracts.md names the tests of each contract."""

from __future__ import annotations

import re

import pytest

from conformance import ROOT
from conformance.scorecard.rows import ROWS, Row, find

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository


def test_every_file_of_tests_has_one_row_and_every_row_its_tests() -> None:
    files = sorted((ROOT / "conformance").rglob("test_*.py"))
    assert len(files) > 50
    asked = {find(str(path.relative_to(ROOT))).name for path in files}
    assert {row.name for row in ROWS if row.folder} == asked
    assert len({row.name.split()[0] for row in ROWS}) == len(ROWS)


def test_the_contracts_name_their_tests() -> None:
    """A section for each contract of the scorecard, in this order, with every file of its folder."""
    contracts = [row for row in ROWS if row.group == "contracts"]
    _, *sections = (ROOT / "docs" / "contracts.md").read_text("utf-8").split("\n## ")
    assert sections.pop().startswith("What exact means\n")
    assert [section.split("\n", 1)[0] for section in sections] == [row.name for row in contracts]
    for row, section in zip(contracts, sections, strict=True):
        listed = set(re.findall(r"^- (conformance/\S+\.py):", section, re.MULTILINE))
        own = {str(path.relative_to(ROOT)) for path in (ROOT / "conformance" / row.folder).glob("test_*.py")}
        assert own <= listed
        # The others have tests with the mark of this contract, or marks that are made from the names of the cases.
        marks = (f'mark.contract("{row.name.split()[0]}")', ".split()[0]))", "@tests.of(")
        for path in listed - own:
            assert any(mark in (ROOT / path).read_text("utf-8") for mark in marks), f"{path} has no test of {row.name}"


def test_a_test_without_one_row_is_found() -> None:
    rows = [Row("C1 x", "a", "", ""), Row("C2 y", "a/b", "", ""), Row("C3 z", "", "", "")]
    assert find("conformance/a/test_a.py::test_x[1]", rows=rows).name == "C1 x"
    assert find("a/test_a.py::test_y", "C3", rows).name == "C3 z"
    for test, mark, said in (
        ("b/test_a.py::test_x", "", "no row"),
        ("a/test_a.py::test_x", "C4", "no row"),
        ("a/b/test_a.py::test_x", "", "the rows C1 x and C2 y"),
    ):
        with pytest.raises(LookupError, match=said):
            find(test, mark, rows)


@pytest.mark.parametrize(
    ("test", "mark", "row"),
    [
        ("caches/test_cache_machines.py::test_machine[list of kv]", "", "cache kinds"),
        ("contracts/c3_exits/test_exits.py::import", "", "C3 exits"),
        ("contracts/c3_exits/test_exits.py::test_it[C3 exits-llama]", "planted", "planted faults"),
        ("contracts/c10_rows_are_alone/test_batch_drafts.py::test_a", "C1", "C1 snapshot"),
        ("expectations/0.32.2-stock.txt:9", "", "series and scripts"),
    ],
)
def test_rows(test: str, mark: str, row: str) -> None:
    assert find(f"conformance/{test}", mark).name == row
