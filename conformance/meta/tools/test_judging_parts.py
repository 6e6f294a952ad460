"""Compare and show judged trees, load adapters, and write reproductions of faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance import ROOT, adapters
from conformance.adapters import NAMES, SHIPPED, Adapter, Unusable, load
from conformance.adapters.series import decode as decode_of_the_series
from conformance.judging import caches, cases, column, commands, decoding, prefixes, states, tests
from conformance.judging.cases import Broken, Case, NotAsked, NotOffered, NotShown, Refused, ask, asked
from conformance.judging.compare import BAD, BROKE, GONE, MENDED, OFFERED, differences, red
from conformance.judging.screen import markdown, reproductions, screen
from conformance.judging.written import written
from conformance.scorecard.cells import load as read_runs
from conformance.scorecard.rows import ROWS
from conformance.testing.models.families import GENERATE

HOLDS, BROKEN, REFUSED, NOT_OFFERED = cases.HOLDS, cases.BROKEN, cases.REFUSED, cases.NOT_OFFERED
STOCK = load("stock")
Outcomes = dict[str, dict[str, Any]]


def outcomes(*rests: str, **results: str) -> Outcomes:
    """Cases of one contract each, by name. All but the first depend on ``rests``."""
    return {
        f"C{i}: {name}": {
            "contract": f"C{i}",
            "about": name,
            "result": result,
            "said": f"{name} said so",
            "lines": "print(1)",
            "rests_on": [one for one in rests if not one.endswith(f": {name}")],
            "size": 0,
        }
        for i, (name, result) in enumerate(results.items())
    }


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        (HOLDS, HOLDS, None),
        (HOLDS, BROKEN, BROKE),
        (BROKEN, BROKEN, None),
        (REFUSED, BROKEN, BROKE),
        (NOT_OFFERED, BROKEN, BROKE),
        (BROKEN, HOLDS, MENDED),
        # C2 allows a refusal.
        (BROKEN, REFUSED, MENDED),
        (REFUSED, HOLDS, OFFERED),
        (NOT_OFFERED, HOLDS, OFFERED),
        (HOLDS, REFUSED, GONE),
        (HOLDS, NOT_OFFERED, GONE),
        (REFUSED, NOT_OFFERED, None),
        (BROKEN, NOT_OFFERED, None),
        (HOLDS, cases.NOT_ASKED, None),
        (cases.NOT_ASKED, HOLDS, None),
        (cases.NOT_ASKED, BROKEN, BROKE),
    ],
)
def test_what_became_of_a_case(was: str, now: str, kind: str | None) -> None:
    found = differences(outcomes(one=was), outcomes(one=now))
    assert [group.kind for group in found] == ([kind] if kind else [])
    assert red(found) == (kind in BAD)


def test_a_case_of_the_tree_alone() -> None:
    assert [group.kind for group in differences({}, outcomes(one=BROKEN))] == [BROKE]
    assert [group.kind for group in differences({}, outcomes(one=HOLDS))] == [OFFERED]
    assert differences({}, outcomes(one=NOT_OFFERED)) == []
    assert differences(outcomes(one=HOLDS), {}) == []


def test_what_follows_from_a_fault_is_no_fault_of_its_own() -> None:
    base = outcomes("C0: cache", cache=HOLDS, decode=HOLDS, server=HOLDS)
    tree = outcomes("C0: cache", cache=BROKEN, decode=BROKEN, server=HOLDS)
    (group,) = differences(base, tree)
    assert (group.contract, group.follow) == ("C0", ["C1: decode"])


def test_what_rests_on_an_old_fault_says_so() -> None:
    tree = outcomes("C0: cache", cache=BROKEN, decode=BROKEN)
    (group,) = differences(outcomes(cache=BROKEN), tree)
    assert (group.kind, group.contract, group.cause) == (BROKE, "C1", "C0: cache")


def test_what_broke_explains_more_than_what_was_broken() -> None:
    base = outcomes("C0: old", "C1: new", old=BROKEN, new=HOLDS, decode=HOLDS)
    tree = outcomes("C0: old", "C1: new", old=BROKEN, new=BROKEN, decode=BROKEN)
    base["C1: new"]["rests_on"] = tree["C1: new"]["rests_on"] = []
    (group,) = differences(base, tree)
    assert (group.contract, group.follow) == ("C1", ["C2: decode"])


def test_one_error_is_one_line() -> None:
    base = {f"C3 exits: {n}": {**outcomes(one=HOLDS)["C0: one"], "contract": "C3 exits"} for n in range(9)}
    tree = {
        case: {**one, "result": BROKEN, "said": f"after {n} tokens it raises KeyError: {n}"}
        for n, (case, one) in enumerate(base.items())
    }
    (group,) = differences(base, tree)
    assert len(group.cases) == 9


def judged(outcomes: Outcomes) -> dict[str, Any]:
    about = {"mlx-lm": "1", "adapter": "stock", "seconds": 1, "mlx": "2", "device": "a CPU"}
    return {**about, "cases": outcomes}


def test_the_screen_the_markdown_and_the_lines(tmp_path: Path) -> None:
    base, tree = (judged(outcomes(kept=HOLDS, lost=result)) for result in (HOLDS, BROKEN))
    (tmp_path / "1-old.py").touch()
    for text in (screen(base, tree, ("a", "b")), markdown(base, tree, ("a", "b"))):
        assert "BROKEN: C1." in text
        assert "C1: lost: lost said so" in text
        assert "kept" not in text
    assert "print(1)" in markdown(base, tree, ("a", "b"))
    assert [file.name for file in reproductions(base, tree, tmp_path)] == ["1-C1.py"]
    assert "Nothing differs." in screen(base, base, ("a", "a"))


def test_a_judged_tree_is_a_column_of_the_scorecard(tmp_path: Path) -> None:
    contracts = {case.contract for case in [*caches.cases(STOCK), *states.cases(STOCK)]}
    contracts |= {case.contract for make in (decoding.cases, commands.cases, prefixes.cases) for case in make(STOCK)}
    assert contracts == column.ROWS.keys()
    assert set(column.ROWS.values()) <= {row.name for row in ROWS}
    one = outcomes(fine=HOLDS, wrong=BROKEN, none=NOT_OFFERED)
    for case, contract in zip(one.values(), column.ROWS, strict=False):
        case["contract"] = contract
    made = column.column(judged(one) | {"python": "3.11"}, "a fork")
    (tmp_path / "run.json").write_text(json.dumps(made))
    (run,) = read_runs([tmp_path / "run.json"])
    cell = run.total
    assert (run.name, cell.passed, cell.counts["failed"], cell.counts["skipped"]) == (
        "a fork judged through stock",
        1,
        1,
        1,
    )


def raising(error: Exception) -> Case:
    def ask() -> None:
        raise error

    return Case("C1", "it", ask)


@pytest.mark.planted
def test_cases_as_a_test() -> None:
    fine, refused = Case("C1", "it", lambda: None), raising(Refused("no"))
    tests.check([fine, raising(NotShown("no"))])
    with pytest.raises(AssertionError, match="it: refused, no"):
        tests.check([fine, refused])
    with pytest.raises(pytest.skip.Exception, match="refused: no"):
        tests.check([refused])
    with pytest.raises(AssertionError, match="it: broken, token 7 is lost\nprint"):
        tests.check([fine, raising(Broken("token 7 is lost", "print(7)"))])


def test_whatever_a_case_raises_is_an_outcome() -> None:
    for error, result in (
        (NotOffered("no"), NOT_OFFERED),
        (NotShown("no"), cases.NOT_SHOWN),
        (NotAsked("no"), cases.NOT_ASKED),
        (Refused("no"), REFUSED),
        (Broken("no"), BROKEN),
        (KeyError("no"), BROKEN),
        (ImportError("cannot import name 'x' from 'mlx_lm'"), NOT_OFFERED),
        (ImportError("it is broken"), BROKEN),
    ):
        assert asked(raising(error)).result == result
    with pytest.raises(LookupError):
        ask([raising(KeyError())] * 2, lambda _: None)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_adapters_of_the_suite_can_be_loaded(name: str) -> None:
    assert load(name).offers() <= NAMES


def test_an_adapter_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for text, said in (
        ("from mlx_lm.generate import no_such_step", "cannot import name 'no_such_step'"),
        ("def decode(:", "cannot be imported here"),
        ("DRAFTER = ('a',)\ndef trim(caches, n): ...", "mine has DRAFTER; what it may have is"),
        ("x = 1", "mine offers nothing"),
    ):
        file.write_text(text)
        with pytest.raises(Unusable, match=said):
            load(str(file))
    with pytest.raises(Unusable, match="is no file and no adapter of the suite"):
        load(str(tmp_path / "other.py"))


def test_what_an_adapter_lacks_is_not_offered(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def trim(caches, n):\n    return 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "conformance.judging", "--adapter", file, "--only", "caches", "--out", tmp_path / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out").read_text()
    assert '"result": "not offered"' in text
    assert '"result": "broken"' not in text


def test_a_part_that_cannot_be_asked_is_named() -> None:
    base, tree = (
        judged(outcomes(kept=HOLDS)),
        judged({}) | {"unasked": {"decoding": "cannot import name 'generate_step'"}},
    )
    for text in (screen(base, tree, ("a", "b")), markdown(base, tree, ("a", "b"))):
        assert "decoding of the tree: cannot import name 'generate_step'" in text


def test_lines_hold_what_they_use() -> None:
    text = written(decode_of_the_series)
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + text, names)
    assert "conformance" not in text.replace("conformance/", "")
    assert {"decode", "Scripted"} <= names.keys()


def test_the_adapter_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "releases.md").read_text().split("## An adapter")[1]
    code = re.search(r"^    import copy\n(?:    .*\n|\n)+", page, re.MULTILINE)
    assert code
    (tmp_path / "mine.py").write_text(textwrap.dedent(code[0]))
    with pytest.raises(Unusable, match="cannot import name 'lookahead_step'"):
        load(str(tmp_path / "mine.py"))
    monkeypatch.setattr(GENERATE, "lookahead_step", lambda *_, **__: iter([(1, None, True)]), raising=False)
    mine = load(str(tmp_path / "mine.py"))
    assert mine.offers() == NAMES - {"fits"}
    assert list(mine.decode(None, [1], None)) == [(1, None, True)]


def test_the_interface_is_described() -> None:
    described = str(adapters.__doc__)
    assert all(name in described for name in NAMES)
    assert isinstance(load("stock"), Adapter)
