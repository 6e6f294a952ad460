"""The scorecard shows the results of runs, and is not stale.

What is planted: rows that are gone, a table of other runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pytest

from conformance import ROOT
from conformance.scorecard.__main__ import main
from conformance.scorecard.cells import (
    CONFORMANT,
    EXPECTED,
    FAILED,
    LEFT_OUT,
    NOT_RUN,
    SAID,
    SKIPPED,
    SuiteRun,
    load,
    names,
)
from conformance.scorecard.rows import ROWS, THE_SUITE, THIS_REPOSITORY
from conformance.scorecard.table import filled, groups, page, table, verdict
from conformance.series.patches import DEFAULT

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository


REASON = f"Because it is <so> {'and so ' * 9}on. And more."


def green(**outcomes: str) -> dict[str, Any]:
    """A run in which a test of each row passed, but for the rows that are named."""
    about = {"release": DEFAULT, "flavour": "patched", "mlx-lm": f"{DEFAULT}+lookup.9", "mlx": "0.9", "python": "3.11"}
    rows: dict[str, Any] = {}
    for row in ROWS:
        rows[row.name] = {f"{row.name}::{i}": {"outcome": "passed", "tokens": 5} for i in range(2)}
        outcome = outcomes.get(row.name.split()[0])
        if outcome == "gone":
            del rows[row.name]
        elif outcome:
            rows[row.name][f"{row.name}::1"] |= {"outcome": outcome, "reason": REASON}
    return about | {"device": "a chip", "whole": True, "rows": rows}


def loaded(folder: Path, *runs: dict[str, Any]) -> list[SuiteRun]:
    paths = [folder / f"{i}.json" for i in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run))
    return load(paths)


def line(runs: Sequence[SuiteRun], row: str) -> list[str]:
    """The cells of a row of the table, one a run."""
    (found,) = (one for one in table(runs).splitlines() if one.startswith(f"| {row} |"))
    return found.strip("| ").split(" | ")[2:]


def test_conformant_is_where_every_row_passed(tmp_path: Path) -> None:
    (run,) = loaded(tmp_path, green())
    assert (run.verdict, run.state) == (CONFORMANT, CONFORMANT)
    assert {cell.state for cell in run.cells.values()} == {CONFORMANT}
    assert (run.total.tests, run.total.total("tokens")) == (2 * len(ROWS), 10 * len(ROWS))


def test_conformant_does_not_need_the_scripts_and_the_suite_itself(tmp_path: Path) -> None:
    (run,) = loaded(tmp_path, green(series="gone", planted="gone", verdicts="gone", tools="gone"))
    once = [row.name for row in ROWS if row.group in (THE_SUITE, THIS_REPOSITORY)]
    assert (once, run.verdict) == (["planted faults", "verdicts", "tools", "series and scripts"], CONFORMANT)


@pytest.mark.parametrize(
    ("outcome", "state", "verdict", "light"),
    [
        ("failed", FAILED, "1 failed", "🔴 1 of 2 pass; 1 failed"),
        ("expected", EXPECTED, "1 expected to fail", "🟡 1 of 2 pass; 1 expected"),
        ("skipped", SKIPPED, "1 skipped", "⚪ 1 of 2 pass; 1 skipped"),
        ("left out", LEFT_OUT, "1 left out", "⚪ 1 of 2 pass; 1 left out"),
        ("gone", NOT_RUN, "no test of C5 processors", "—"),
    ],
)
def test_one_test_withholds_the_word(tmp_path: Path, outcome: str, state: str, verdict: str, light: str) -> None:
    (run,) = runs = loaded(tmp_path, green(C5=outcome))
    assert (run.cell("C5 processors").state, run.state, run.verdict) == (state, state, verdict)
    assert line(runs, "C5 processors") == [light]
    assert line(runs, "C4 parity") == ["🟢 all 2 pass"]
    assert f"**{CONFORMANT}**" not in table(runs)
    assert f"**{CONFORMANT}**" not in page(runs)
    if outcome != "gone":
        note = REASON.removesuffix(" And more.").replace("<", "&lt;")
        assert f"\n- With the series, {SAID[outcome]}: {note}\n" in table(runs)
        assert escape(REASON) in page(runs)
        assert "<pre>C5 processors::1</pre>" in page(runs)


def test_the_worst_outcome_is_shown(tmp_path: Path) -> None:
    run = green(C3=EXPECTED)
    run["rows"]["C3 exits"]["C3 exits::0"]["outcome"] = FAILED
    (got,) = loaded(tmp_path, run)
    assert (got.cell("C3 exits").state, got.cell("C3 exits").said) == (FAILED, "0 of 2, 1 failed, 1 expected to fail")


def test_a_part_of_the_suite_is_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part.json").write_text(json.dumps(green() | {"whole": False}))
    assert main([str(tmp_path / "part.json")]) == 1
    assert "a part of the suite" in capsys.readouterr().err


@pytest.mark.planted
def test_rows_of_yesterday_are_found(tmp_path: Path) -> None:
    run = green()
    run["rows"]["C0 luck"] = {}
    with pytest.raises(ValueError, match="C0 luck"):
        loaded(tmp_path, run)


def test_two_environments_make_a_run(tmp_path: Path) -> None:
    """Two runs with parts of the tests make one run. With another series, only the later run counts."""
    first, second = green(C3=FAILED, C4="left out", verdicts="gone"), green(C3=LEFT_OUT)
    first["rows"]["C5 processors"] = {"a": {"outcome": "passed"}}
    for result in second["rows"]["surface"].values():
        result["outcome"] = LEFT_OUT
    (run,) = loaded(tmp_path, first, second)
    assert (run.cell("C4 parity").said, run.cell("verdicts").said, run.cell("surface").said) == ("2", "2", "2")
    assert (run.cell("C5 processors").said, run.cell("C3 exits").said) == ("3", "1 of 2, 1 failed")
    # Tests that neither ran count as left out by the later run.
    both = [green() | {"rows": {"surface": {n: {"outcome": LEFT_OUT} for n in left}}} for left in ("ab", "bcd")]
    (run,) = loaded(tmp_path, *both)
    assert run.cell("surface").said == "0 of 3, 3 left out"
    (run,) = loaded(tmp_path, first | {"mlx-lm": f"{DEFAULT}+lookup.8"}, second)
    assert (run.cell("surface").said, run.verdict) == ("0 of 2, 2 left out", "3 left out, no test of surface")


def test_runs_of_one_release_are_told_apart(tmp_path: Path) -> None:
    runs = [green(), green() | {"mlx": "0.8"}, green() | {"mlx": "0.8", "device": "b chip"}, green() | {"flavour": "x"}]
    first, *others = (f"{DEFAULT} patched, mlx {more}" for more in ("0.9", "0.8, a chip", "0.8, b chip"))
    assert names(loaded(tmp_path, *runs)) == [first, *others, f"{DEFAULT} x"]


def test_the_table_has_the_newest_mlx_of_the_default_release_and_the_page_the_others_too(tmp_path: Path) -> None:
    older = [green() | {"mlx": "0.8"}, green() | {"release": "0.1.0"}]
    runs = loaded(tmp_path, *older, green() | {"mlx": "0.10"}, green() | {"flavour": "x"})
    _, _, head, *_ = table(runs).splitlines()
    assert head == f"| Contract | What it says | {DEFAULT} patched | {DEFAULT} x |"
    assert "mlx 0.10," in table(runs)
    assert not re.search(r"mlx 0\.8|0\.1\.0", table(runs))
    assert f"{DEFAULT} patched, mlx 0.8" in page(runs)
    assert "0.1.0 patched" in page(runs)
    assert "There is no run of 0.0.1 yet" in table(runs, "0.0.1")


def test_the_table_has_the_contracts_and_a_line_of_all_else(tmp_path: Path) -> None:
    runs = loaded(tmp_path, green(surface=FAILED, planted=FAILED))
    contracts = [row.name for row in ROWS if row.group == "contracts"]
    rows = [one.split(" | ")[0] for one in table(runs).splitlines() if one.startswith("| ")]
    assert rows == ["| Contract", "| ---", *(f"| {name}" for name in contracts), "| everything else"]
    # What the suite tests of itself is in the count below.
    others = 2 * sum(row.group not in ("contracts", THE_SUITE, THIS_REPOSITORY) for row in ROWS)
    assert line(runs, "everything else") == [f"🔴 {others - 1} of {others} pass; 1 failed"]
    assert f"**2 failed**: {2 * len(ROWS) - 2} of {2 * len(ROWS)} tests pass" in table(runs)


NO_API, WRONG, REFUSED = "No such API: it has no snap.", "Wrong: a token short.", "Refused: it cannot be trimmed."


@pytest.mark.parametrize(
    ("stock", "cell"),
    [
        ([(EXPECTED, NO_API)], "⚪ needs the series"),
        ([], "⚪ needs the series"),
        ([("passed", "")], "⚪ 1 of 4 pass; 3 need the series"),
        ([("passed", ""), (EXPECTED, WRONG), (EXPECTED, NO_API)], "🟡 1 of 4 pass; 1 wrong, 2 need the series"),
        ([(EXPECTED, REFUSED), (SKIPPED, "refused, as said")], "🟡 0 of 4 pass; 2 refused, 2 need the series"),
        ([("passed", "")] * 3 + [(FAILED, "")], "🔴 3 of 4 pass; 1 failed"),
        ([("passed", "")] * 4 + [(EXPECTED, NO_API)], "🟢 all 4 pass"),
        ([("passed", "")] * 4 + [(FAILED, "")], "🔴 4 of 4 pass; 1 failed"),
    ],
)
def test_both_columns_count_the_same_tests(tmp_path: Path, stock: list[tuple[str, str]], cell: str) -> None:
    """A file that a stock release cannot import is one test there, whatever it holds."""
    one, other = green(), green() | {"flavour": "stock"}
    one["rows"]["C4 parity"] = {str(i): {"outcome": "passed"} for i in range(4)}
    other["rows"]["C4 parity"] = {
        str(i): {"outcome": outcome, "reason": reason} for i, (outcome, reason) in enumerate(stock)
    }
    assert line(loaded(tmp_path, one, other), "C4 parity") == ["🟢 all 4 pass", cell]


@pytest.mark.planted
def test_what_is_wrong_comes_first(tmp_path: Path) -> None:
    stock = green(C1=EXPECTED, C9=SKIPPED) | {"flavour": "stock"}
    right = loaded(tmp_path, green(), stock)
    assert verdict(right).startswith(f"**Nothing is wrong**: no test fails in {DEFAULT} patched, {DEFAULT} stock but")
    wrong = loaded(tmp_path, green(surface=FAILED), stock)
    assert verdict(wrong) == f"**Something is wrong**: {DEFAULT} patched has 1 failed of surface."
    for runs in (right, wrong):
        assert table(runs).splitlines()[0] == page(runs).splitlines()[2] == verdict(runs)


MARKERS = "a\n<!-- scorecard -->\n<!-- end scorecard -->\nb\n"


@pytest.mark.planted
def test_a_stale_table_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme, shown, run = tmp_path / "README.md", tmp_path / "page.md", tmp_path / "0.json"
    after = loaded(tmp_path, green(C9=SKIPPED))
    readme.write_text(MARKERS)
    assert main([str(run), "--readme", str(readme), "--page", str(shown)]) == 0
    assert capsys.readouterr().out == f"{verdict(after)}\n"
    assert shown.read_text() == page(after)
    text = readme.read_text()
    assert "1 skipped" in text
    assert filled(text, after) == text
    assert filled(text, loaded(tmp_path, green())) != text
    readme.write_text("no markers")
    assert main([str(run), "--readme", str(readme)]) == 1


def test_the_document_has_a_line_of_each_contract() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    (found,) = re.findall(r"<!-- scorecard -->\n(.*?)<!-- end scorecard -->", text, re.DOTALL)
    assert found.startswith(("**Nothing is wrong**: ", "**Something is wrong**: "))
    lines = [line.strip("| ").split(" | ")[:2] for line in found.splitlines() if line.startswith("| ")]
    assert lines[2:] == [[name, what] for name, what, _ in groups()]
