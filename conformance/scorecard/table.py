"""The Markdown table of the README, between markers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.scorecard.cells import CONFORMANT, EXPECTED, FAILED, LEFT_OUT, SKIPPED, Cell, Run
from conformance.scorecard.rows import ROWS

MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
LIGHTS = {CONFORMANT: "🟢", EXPECTED: "🟡", SKIPPED: "⚪", LEFT_OUT: "⚪", FAILED: "🔴"}
LONGEST = 240


def short(reason: str) -> str:
    """The first sentence of a reason."""
    found = (
        re.match(r"(.+?[.:])(\s|$)", reason.split(": ", 1)[1]) if reason.startswith("Upstream model fault") else None
    )
    text = f"{reason.split(': ', 1)[0]}: {found[1]}" if found else re.split(r"(?<=\.)\s", reason, maxsplit=1)[0]
    text = text if len(text) <= LONGEST else text[: LONGEST - 1].rsplit(" ", 1)[0] + "…"
    return text.rstrip(":").replace("|", "\\|").replace("<", "&lt;")


class Notes:
    """Reasons, each with a number."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}

    def of(self, cell: Cell) -> str:
        found = {
            self.numbers.setdefault((outcome, short(reason)), len(self.numbers) + 1)
            for outcome, reason in cell.why
            if reason
        }
        return "".join(f" [{number}]" for number in sorted(found))

    @property
    def lines(self) -> list[str]:
        return [f"{number}. {outcome}: {reason}" for (outcome, reason), number in self.numbers.items()]


def shown(cell: Cell, notes: Notes) -> str:
    return f"{LIGHTS[cell.state]} {cell.said}{notes.of(cell)}" if cell.state in LIGHTS else "—"


def behind(run: Run) -> str:
    total = run.total
    return f"{total.tests:,} tests, {total.examples:,} examples, {total.tokens:,} tokens"


def table(runs: Sequence[Run]) -> str:
    if not runs:
        return "No run is kept in docs/scorecard.json yet.\n"
    notes = Notes()
    lines = [
        ["", *(run.name for run in runs)],
        ["---"] * (len(runs) + 1),
        ["**the whole**", *(f"**{run.verdict}**" for run in runs)],
        *([row.name, *(shown(run.cell(row.name), notes) for run in runs)] for row in ROWS),
        ["behind it", *map(behind, runs)],
        ["mlx", *(run.about["mlx"] for run in runs)],
        ["device", *(run.about["device"] for run in runs)],
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    return text + "".join(f"\n{line}" for line in notes.lines) + ("\n" if notes.lines else "")


def filled(text: str, runs: Sequence[Run]) -> str:
    """A document with the table of these runs between its markers."""
    return MARKED.sub(lambda found: found[1] + table(runs) + found[2], text)
