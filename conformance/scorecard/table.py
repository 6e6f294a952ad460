"""Write the Markdown table of the README, between two markers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.scorecard.cells import CONFORMANT, EXPECTED, FAILED, LEFT_OUT, SKIPPED, Cell, Run, names
from conformance.scorecard.rows import ROWS

MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
LIGHTS = {CONFORMANT: "🟢", EXPECTED: "🟡", SKIPPED: "⚪", LEFT_OUT: "⚪", FAILED: "🔴"}
# Characters of a reason. Sentences are added until they pass the least; no reason is longer than the most.
LEAST, MOST = 60, 240


def short(reason: str) -> str:
    """The start of a reason, in whole sentences if they are not too long."""
    text = ""
    for sentence in re.split(r"(?<=\.)\s+", reason):
        if len(text) < LEAST:
            text = f"{text} {sentence}".strip()
    text = text if len(text) <= MOST else text[: MOST - 1].rsplit(" ", 1)[0] + "…"
    return text.replace("|", "\\|").replace("<", "&lt;")


class Notes:
    """Numbered reasons, as notes below the table."""

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
    if cell.state not in LIGHTS:
        return "—"
    of = f" of {cell.run:,}" if cell.run > cell.passed else ""
    return f"{LIGHTS[cell.state]} {cell.passed:,}{of}{notes.of(cell)}"


def behind(run: Run) -> str:
    total = run.total
    return f"{total.run:,} tests, {total.examples:,} examples, {total.tokens:,} tokens"


def newest(runs: Sequence[Run]) -> list[Run]:
    """The run with the newest mlx for each release, flavour and device. The page shows the others."""
    found: dict[tuple[str, ...], Run] = {}
    for run in runs:
        found.setdefault(tuple(run.about[name] for name in ("release", "flavour", "device")), run)
    return list(found.values())


def table(runs: Sequence[Run]) -> str:
    runs = newest(runs)
    if not runs:
        return "No run is kept in docs/scorecard.json yet.\n"
    notes = Notes()
    lines = [
        ["", *names(runs)],
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
