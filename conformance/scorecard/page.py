"""One HTML page: no network, no script, and readable on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from conformance.scorecard.cells import CONFORMANT, EXPECTED, FAILED, LEFT_OUT, NOT_RUN, SKIPPED, Cell, SuiteRun, names
from conformance.scorecard.rows import ROWS, Row
from conformance.scorecard.table import newest

TEMPLATE = Path(__file__).with_name("page.html")
SIGNS = {CONFORMANT: "✓", EXPECTED: "!", SKIPPED: "○", LEFT_OUT: "○", FAILED: "✗", NOT_RUN: "—"}


def slug(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-").lower()


def badge(state: str, text: str) -> str:
    return f'<span class="badge {slug(state)}"><b>{SIGNS[state]}</b> {escape(text)}</span>'


def behind(cell: Cell) -> str:
    """What is counted below the tests."""
    counts = [f"{n:,} {name}" for name, n in (("examples", cell.examples), ("tokens", cell.tokens)) if n]
    return f"<small>{', '.join(counts)}</small>" if counts else ""


def told(cell: Cell, text: str, name: str, link: str = "") -> str:
    """A cell of a table; one that did not pass leads to its reasons."""
    shown = badge(cell.state, text)
    shown = f'<a href="#{link}">{shown}</a>' if link and cell.why else shown
    return f'<td data-name="{escape(name)}">{shown}{behind(cell)}</td>'


def head(runs: Sequence[SuiteRun], first: str) -> str:
    return f"<thead><tr><th>{first}</th>{''.join(f'<th>{escape(name)}</th>' for name in names(runs))}</tr></thead>"


def summary(runs: Sequence[SuiteRun]) -> str:
    """A card a run."""

    def card(i: int, run: SuiteRun, name: str) -> str:
        text = " ".join(f"{key} {run.about[key]}," for key in ("mlx-lm", "mlx", "python"))
        total = run.total
        link = f'<a href="#why-{i}">what did not pass, and why</a>' if total.why else ""
        about = f"<p>{total.run:,} tests {behind(total)}</p><p>{escape(text)} {escape(run.about['device'])}</p>"
        return f'<div class="card"><h3>{escape(name)}</h3>{badge(run.state, run.verdict)}{about}{link}</div>'

    return "".join(card(i, run, name) for i, (run, name) in enumerate(zip(runs, names(runs), strict=True)))


def sentences(runs: Sequence[SuiteRun]) -> str:
    """A sentence a release, and one of what differs between its columns."""
    said = []
    for release in dict.fromkeys(run.about["release"] for run in runs):
        of = [run for run in runs if run.about["release"] == release]
        shown = newest(of)
        totals = [told_of(run, name.removeprefix(release)) for run, name in zip(shown, names(shown), strict=True)]
        said.append(f"<b>{escape(release)}</b>{';'.join(totals)}. {escape(' '.join(between(of)))}")
    return "".join(f"<p>{one}</p>" for one in said)


def told_of(run: SuiteRun, name: str) -> str:
    total = run.total
    rest = "every row is green" if run.state == CONFORMANT else run.verdict
    return escape(f"{name}: {total.passed:,} of {total.tests:,} tests passed, {rest}")


def between(runs: Sequence[SuiteRun]) -> Iterable[str]:
    """What differs between the columns of a release, in rows that all of them ran."""

    def states(name: str, of: Sequence[SuiteRun]) -> set[str]:
        return {run.cell(name).state for run in of}

    flavours = {name: [run for run in runs if run.about["flavour"] == name] for name in ("patched", "stock")}
    both = [row.name for row in ROWS if all(flavours.values()) and NOT_RUN not in states(row.name, runs)]
    if both:
        mended = [n for n in both if {CONFORMANT} == states(n, flavours["patched"]) != states(n, flavours["stock"])]
        yield f"{len(mended)} of the {len(both)} rows that all columns ran are green only with the series."
    if any(len(of) > 1 for of in flavours.values()):
        told = []
        for flavour, of in flavours.items():
            ran = [row.name for row in ROWS if NOT_RUN not in states(row.name, of)]
            told += [f"{name} ({flavour})" for name in ran if len(states(name, of)) > 1]
        yield f"Another mlx or device changes the colour of {', '.join(told) or 'no row'}."


def line(row: Row, runs: Sequence[SuiteRun]) -> str:
    cells = [run.cell(row.name) for run in runs]
    text = "".join(
        told(cell, cell.said, name, f"why-{i}-{slug(row.name)}")
        for i, (cell, name) in enumerate(zip(cells, names(runs), strict=True))
    )
    return f"<tr><th>{escape(row.name)}<small>{escape(row.about)}</small></th>{text}</tr>"


def rows(runs: Sequence[SuiteRun]) -> str:
    lines, group = [], ""
    for row in ROWS:
        if row.group != group:
            group = row.group
            lines.append(f'<tr class="group"><th colspan="{len(runs) + 1}">{escape(group)}</th></tr>')
        lines.append(line(row, runs))
    return f"<table>{head(runs, '')}<tbody>{''.join(lines)}</tbody></table>"


def parts(row: Row, runs: Sequence[SuiteRun]) -> str:
    """What a row is made of, closed until it is asked for."""
    found = sorted({part for run in runs for part in run.rows.get(row.name, {})})
    if not found:
        return ""
    lines = []
    for part in found:
        cells = [run.rows.get(row.name, {}).get(part, Cell()) for run in runs]
        told_all = "".join(told(cell, cell.said, name) for cell, name in zip(cells, names(runs), strict=True))
        lines.append(f"<tr><th>{escape(part)}</th>{told_all}</tr>")
    return (
        f"<details><summary>{escape(row.name)} <small>{len(found)}</small></summary>"
        f'<div class="wide"><table>{head(runs, "")}<tbody>{"".join(lines)}</tbody></table></div></details>'
    )


def reasons(cell: Cell) -> Iterable[str]:
    for (outcome, reason), tests in cell.why.items():
        listed = "".join(f"<li><code>{escape(test)}</code></li>" for test in tests)
        yield (
            f"<div class='why'>{badge(outcome, outcome)} <span>{escape(reason)}</span>"
            f"<details><summary>{len(tests):,} {'test' if len(tests) == 1 else 'tests'}</summary>"
            f"<ul>{listed}</ul></details></div>"
        )


def why(i: int, run: SuiteRun, name: str) -> str:
    """What did not pass in a run, row by row."""
    found = [(row, run.cell(row.name)) for row in ROWS if run.cell(row.name).why]
    text = "".join(
        f'<h4 id="why-{i}-{slug(row.name)}">{escape(row.name)}</h4>{"".join(reasons(cell))}' for row, cell in found
    )
    return f'<section id="why-{i}"><h3>{escape(name)}</h3>{text}</section>' if found else ""


def page(runs: Sequence[SuiteRun]) -> str:
    whys = "".join(why(i, run, name) for i, (run, name) in enumerate(zip(runs, names(runs), strict=True)))
    filled = {
        "SENTENCES": sentences(runs),
        "SUMMARY": summary(runs) or "<p>No run is kept yet.</p>",
        "ROWS": rows(runs) if runs else "",
        "PARTS": "".join(parts(row, runs) for row in ROWS),
        "WHY": whys or "<p>Nothing.</p>",
    }
    return re.sub(r"<!-- ([A-Z]+) -->", lambda found: filled[found[1]], TEMPLATE.read_text("utf-8"))
