"""Make a table by contract of runs of the suite: python -m conformance.scorecard FILE...

A FILE is what --report wrote in an environment of tox.ini, and has its name: .tox/scorecards/stock.jsonl. The table is
of the default release, patched and stock. The page lists the tests that did not pass, of all files.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.arguments import parser
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_FINISHED, REFUSED, SKIPPED, Result, kind
from conformance.judging.results import read as results_of
from conformance.tables import table

CONTRACTS = {
    "C1 snapshot": "a restored cache is what it was",
    "C2 no silent no-op": "a cache drops tokens exactly, or the error names it",
    "C3 exits": "however generation ends, the cache holds what was yielded",
    "C4 parity": "the tokens and log probabilities of plain decoding",
    "C5 processors": "logits processors see what plain decoding shows them",
    "C6 nothing hidden": "the response says why nothing is drafted; contradictions are errors",
    "C7 no regret": "drafting that does not pay becomes shorter; nothing is measured",
    "C8 one forward a cycle": "a rejected draft costs no second forward pass",
    "C9 ranks agree": "all ranks draft and accept alike",
    "C10 rows are alone": "each row of a batch is what it is alone",
    "C11 prefixes": "a prompt that begins like a cached one is answered as from nothing",
}
REST = "everything else"
ROWS = CONTRACTS | {REST: "cache kinds, architectures, commands, chat, server, surface"}
PASSED, FAILED = "passed", "failed"
# What a cell says of tests that did not pass, in this order, and the light of the first of them.
LIGHTS = {FAILED: "🔴", "wrong": "🟡", REFUSED: "🟡", SKIPPED: "⚪", ABSENT: "⚪"}
MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
# The columns of the table.
DEFAULT = ("patched", "stock")


@dataclass
class Run:
    name: str
    # The versions and the device.
    on: str
    rows: dict[str, Counter[str]] = field(default_factory=lambda: {row: Counter() for row in ROWS})
    # The tests that did not pass, by outcome and reason.
    why: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def read(path: Path) -> Run:
    on, found = results_of(path)
    run = Run(path.stem, on)
    for test, one in found.items():
        said, reason = outcome(one)
        run.rows[row_of(test, one)][said] += 1
        if said != PASSED:
            run.why.setdefault((said, reason), []).append(test)
    return run


def row_of(test: str, one: Result) -> str:
    """The row of the contract that a mark names, or else that of its folder or file."""
    folder = re.search(r"contracts/(?:test_)?(c\d+)_", test)
    contract = one.notes.get("contract") or one.asked.split(" ")[0] or (folder[1].upper() if folder else "")
    return next((row for row in CONTRACTS if row.split()[0] == contract), REST)


def outcome(one: Result) -> tuple[str, str]:
    """What became of a test, and the first line of the reason."""
    if one.outcome == HOLDS:
        # It may pass although it is expected to fail.
        return (FAILED, one.said) if one.said else (PASSED, "")
    if one.expected:
        return {"no such API": ABSENT, "": "wrong"}.get(kind(one.expected), kind(one.expected)), one.expected
    if one.outcome in (BROKEN, NOT_FINISHED):
        return FAILED, one.said
    return (one.outcome, one.said) if one.outcome == REFUSED else (SKIPPED, f"{one.outcome}: {one.said}")


def cell(told: Counter[str], tests: int) -> str:
    """How many of so many tests pass. What a run does not count itself is not offered: a file that does not import is
    one test, whatever it holds."""
    absent = max(tests - sum(n for said, n in told.items() if said != ABSENT), 0)
    rest = {said: n for said in LIGHTS if (n := absent if said == ABSENT else told[said])}
    light = next((LIGHTS[said] for said in rest), "🟢")
    return ", ".join([f"{light} {told[PASSED]:,}", *(f"{n:,} {said}" for said, n in rest.items())])


def verdict(runs: Sequence[Run]) -> str:
    """What fails that should not, in one line."""
    failed = {run.name: sum(row[FAILED] for row in run.rows.values()) for run in runs}
    if any(failed.values()):
        return f"**Not as expected**: {'; '.join(f'{name} has {n:,} failed' for name, n in failed.items() if n)}."
    return f"**As expected**: in {', '.join(failed)} no tests fail but those that should."


def card(runs: Sequence[Run]) -> str:
    """A line for each contract, with the tests of the first run as the whole of it."""
    lines = []
    for row, what in ROWS.items():
        tests = runs[0].rows[row].total()
        lines.append([row, what, *(cell(run.rows[row], tests) for run in runs)])
    text = table(["Contract", "What it says", *(run.name for run in runs)], lines)
    return f"{verdict(runs)}\n\n{text}\n\n" + "".join(f"- {run.name}: {run.on}\n" for run in runs)


def page(runs: Sequence[Run]) -> str:
    """The tests that did not pass, below their reasons."""
    lines = ["# The scorecard", "", verdict(runs)]
    for run in runs:
        lines += ["", f"## {run.name}: {run.on}"]
        for (said, reason), tests in run.why.items():
            lines += ["", f"{len(tests):,} {said}. {reason}", "", *(f"    {test}" for test in tests)]
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> int:
    asked = parser(__doc__, "python -m conformance.scorecard")
    asked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    asked.add_argument("--page", type=Path, metavar="FILE", required=True, help="write the page, in Markdown")
    asked.add_argument("--readme", type=Path, metavar="FILE", required=True, help="the document that has the table")
    args = asked.parse_args(arguments)
    runs = [read(path) for path in args.files]
    args.page.write_text(page(runs), "utf-8")
    if shown := [run for run in runs if run.name in DEFAULT]:
        made = card(shown)
        text, n = MARKED.subn(lambda at: at[1] + made + at[2], args.readme.read_text("utf-8"))
        if not n:
            sys.exit(f"error: {args.readme} has no <!-- scorecard --> and <!-- end scorecard -->.")
        args.readme.write_text(text, "utf-8")
    print(verdict(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
