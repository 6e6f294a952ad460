"""The results of runs in Markdown: the table of docs/releases.md, and a page with every run, row and reason.

The table stands between markers, and has the default release by contract, patched and stock.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from conformance.expectations.files import kind
from conformance.scorecard.cells import (
    CONFORMANT,
    EXPECTED,
    FAILED,
    LEFT_OUT,
    PASSED,
    SAID,
    SKIPPED,
    Cell,
    SuiteRun,
    joined,
    names,
)
from conformance.scorecard.rows import ROWS, THE_SUITE, THIS_REPOSITORY
from conformance.series.patches import DEFAULT

MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
LIGHTS = {CONFORMANT: "🟢", EXPECTED: "🟡", SKIPPED: "⚪", LEFT_OUT: "⚪", FAILED: "🔴"}
REST, NEEDED = "everything else", "needs the series"
# The words of a cell, in this order.
TOLD = (FAILED, "wrong", "refused", EXPECTED, SKIPPED, LEFT_OUT)
# Characters of a reason: its first sentences up to the one that passes the least, and no more than the most.
LEAST, MOST = 60, 240


def short(reason: str) -> str:
    """The start of a reason, in whole sentences if they are not too long."""
    text = ""
    for sentence in re.split(r"(?<=\.)\s+", reason):
        if len(text) < LEAST:
            text = f"{text} {sentence}".strip()
    text = text if len(text) <= MOST else text[: MOST - 1].rsplit(" ", 1)[0] + "…"
    return text.replace("|", "\\|").replace("<", "&lt;")


def word(outcome: str, reason: str) -> str:
    """What a test that did not pass says of a release."""
    if outcome == SKIPPED and reason.startswith("refused"):
        return "refused"
    return {"no such API": NEEDED}.get(kind(reason), kind(reason) or outcome) if outcome == EXPECTED else outcome


def shown(cell: Cell, tests: int) -> str:
    """How many of so many tests pass.

    ``tests`` are those of the row with the series. What a run does not count itself needs the series: a file that does
    not import is one test, whatever it holds.
    """
    told = Counter({PASSED: cell.passed})
    for (outcome, reason), found in cell.why.items():
        told[word(outcome, reason)] += len(found)
    needed = max(tests - sum(n for name, n in told.items() if name != NEEDED), 0)
    if not tests:
        return "—"
    if needed == tests:
        return f"⚪ {NEEDED}"
    rest = [f"{told[name]:,} {name}" for name in TOLD if told[name]]
    if cell.passed == tests and not rest:
        return f"{LIGHTS[CONFORMANT]} all {tests:,} pass"
    rest += [f"{needed:,} need{'s' if needed == 1 else ''} the series"] if needed else []
    # Green is for all tests of a row.
    light = LIGHTS.get(cell.state if cell.state != CONFORMANT else LEFT_OUT, LIGHTS[LEFT_OUT])
    return f"{light} {cell.passed:,} of {tests:,} pass; {', '.join(rest)}"


def newest(runs: Sequence[SuiteRun]) -> list[SuiteRun]:
    """The run with the newest mlx for each release, flavour and device. The page shows the others too."""
    found: dict[tuple[str, ...], SuiteRun] = {}
    for run in runs:
        found.setdefault(tuple(run.about[name] for name in ("release", "flavour", "device")), run)
    return list(found.values())


def groups() -> list[tuple[str, str, list[str]]]:
    """The lines of the table: the contracts, and all other rows that are about a release."""
    lines = [(row.name, row.about, [row.name]) for row in ROWS if row.group == "contracts"]
    others = [row.name for row in ROWS if row.group not in ("contracts", THE_SUITE, THIS_REPOSITORY)]
    return [*lines, (REST, ", ".join(others), others)]


def cell_of(run: SuiteRun, rows: Iterable[str]) -> Cell:
    return joined(run.cell(row) for row in rows)


def about(run: SuiteRun, name: str) -> str:
    """Where a run was made; with the series also all that is behind it, the suite's tests of itself included."""
    total, facts = run.total, run.about
    where = f"- {name}: mlx-lm {facts['mlx-lm']}, mlx {facts['mlx']}, {facts['device']}."
    if facts["flavour"] != "patched":
        return where
    counted = f"{total.total('examples'):,} examples and {total.total('tokens'):,} tokens"
    return f"{where} **{run.verdict}**: {total.passed:,} of {total.tests:,} tests pass, with {counted}."


def verdict(runs: Sequence[SuiteRun]) -> str:
    """What is wrong, in one line, or that nothing is: with the series nothing fails, and without it what is said."""
    wrong = [
        f"{name} has {cell.counts[FAILED]:,} failed of {row}"
        for run, name in zip(runs, names(runs), strict=True)
        for row, cell in run.cells.items()
        if cell.counts[FAILED]
    ]
    if wrong:
        return f"**Something is wrong**: {'; '.join(wrong)}."
    return f"**Nothing is wrong**: no test fails in {', '.join(names(runs))} but those that are expected to."


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *lines])


def table(runs: Sequence[SuiteRun], release: str = DEFAULT) -> str:
    """The table of a release, a line on each of its runs, and why tests of the patched ones do not pass."""
    runs = [run for run in newest(runs) if run.about["release"] == release]
    if not runs:
        return f"There is no run of {release} yet.\n"
    heads, patched = names(runs), [run for run in runs if run.about["flavour"] == "patched"]
    lines = []
    for name, what, rows in groups():
        cells = [cell_of(run, rows) for run in runs]
        asked = max((cell_of(run, rows).tests for run in patched), default=0)
        lines.append([name, what, *(shown(cell, asked or cell.tests) for cell in cells)])
    text = f"{verdict(runs)}\n\n{grid(['Contract', 'What it says', *heads], lines)}\n"
    text += "\n".join(about(run, name) for run, name in zip(runs, heads, strict=True)) + "\n"
    reasons = {(outcome, short(reason)): None for run in patched for outcome, reason in run.total.why if reason}
    return text + "".join(f"- With the series, {SAID[outcome]}: {reason}\n" for outcome, reason in reasons)


def filled(text: str, runs: Sequence[SuiteRun]) -> str:
    """A document with the table of these runs between its markers."""
    return MARKED.sub(lambda found: found[1] + table(runs) + found[2], text)


def page(runs: Sequence[SuiteRun]) -> str:
    """Every run, row and reason: first what is wrong, then the rows, then the tests that did not pass."""
    cells = [[run.cell(row.name) for run in runs] for row in ROWS]
    lines = [
        [row.name, row.about, *(f"{LIGHTS.get(cell.state, '—')} {cell.said}" for cell in of)]
        for row, of in zip(ROWS, cells, strict=True)
    ]
    text = f"# The scorecard\n\n{verdict(runs)}\n\n{grid(['Row', 'What it says', *names(runs)], lines)}"
    for run, name in zip(runs, names(runs), strict=True):
        text += f"\n## {name}\n\n{about(run, name)}\n\n"
        text += "".join(f"{line}\n" for row, cell in run.cells.items() for line in reasons(row, cell))
    return text


def reasons(row: str, cell: Cell) -> Iterable[str]:
    """A line for each reason why tests of a row did not pass, with these tests folded in."""
    for (outcome, reason), tests in cell.why.items():
        said = f"{row}: {len(tests):,} {SAID[outcome]}. {escape(reason)}"
        yield f"<details><summary>{said}</summary><pre>{escape(chr(10).join(tests))}</pre></details>"
