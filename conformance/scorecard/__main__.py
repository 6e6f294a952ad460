"""Make a table by contract of runs of the suite: python -m conformance.scorecard DOCUMENT FILE...

A FILE is what --report wrote in an environment of tox.ini, and has its name: .tox/scorecards/stock.jsonl. The table is
of the default release, patched and stock. What is said of failures is about all files.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from conformance.arguments import parser
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_FINISHED, REFUSED, SKIPPED, Result, kind, read
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
# How many tests of each row had which outcome.
Counts = dict[str, Counter[str]]


def counted(file: Path) -> tuple[str, Counts]:
    """The versions and the device of a run, and its counts."""
    counts: Counts = {row: Counter() for row in ROWS}
    on, found = read(file)
    for test, one in found.items():
        counts[row_of(test, one)][outcome(one)] += 1
    return on, counts


def row_of(test: str, one: Result) -> str:
    """The row of the contract that a mark names, or else that of its folder or file."""
    folder = re.search(r"contracts/(?:test_)?(c\d+)_", test)
    contract = one.notes.get("contract") or one.asked.split(" ")[0] or (folder[1].upper() if folder else "")
    return next((row for row in CONTRACTS if row.split()[0] == contract), REST)


def outcome(one: Result) -> str:
    if one.outcome == HOLDS:
        # It may pass although it is expected to fail.
        return FAILED if one.said else PASSED
    if one.expected:
        return {"no such API": ABSENT, "": "wrong"}.get(kind(one.expected), kind(one.expected))
    return {BROKEN: FAILED, NOT_FINISHED: FAILED, REFUSED: REFUSED}.get(one.outcome, SKIPPED)


def cell(told: Counter[str], tests: int) -> str:
    """How many of so many tests pass. What a run does not count itself is not offered: a file that does not import is
    one test, whatever it holds."""
    absent = max(tests - sum(n for said, n in told.items() if said != ABSENT), 0)
    rest = {said: n for said in LIGHTS if (n := absent if said == ABSENT else told[said])}
    light = next((LIGHTS[said] for said in rest), "🟢")
    return ", ".join([f"{light} {told[PASSED]:,}", *(f"{n:,} {said}" for said, n in rest.items())])


def verdict(runs: dict[str, Counts]) -> str:
    """What fails that should not, in one line."""
    failed = {name: sum(row[FAILED] for row in counts.values()) for name, counts in runs.items()}
    if any(failed.values()):
        return f"**Not as expected**: {'; '.join(f'{name} has {n:,} failed' for name, n in failed.items() if n)}."
    return f"**As expected**: in {', '.join(failed)} no tests fail but those that should."


def card(runs: dict[str, Counts], on: dict[str, str]) -> str:
    """A line for each contract, with the tests of the first run as the whole of it."""
    wholes = {row: counts.total() for row, counts in next(iter(runs.values())).items()}
    lines = [[row, what, *(cell(one[row], wholes[row]) for one in runs.values())] for row, what in ROWS.items()]
    text = table(["Contract", "What it says", *runs], lines)
    return f"{verdict(runs)}\n\n{text}\n\n" + "".join(f"- {name}: {on[name]}\n" for name in runs)


def main(arguments: list[str] | None = None) -> int:
    asked = parser(__doc__, "python -m conformance.scorecard")
    asked.add_argument("document", type=Path, metavar="DOCUMENT")
    asked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    args = asked.parse_args(arguments)
    found = {file.stem: counted(file) for file in args.files}
    on, runs = {name: on for name, (on, _) in found.items()}, {name: counts for name, (_, counts) in found.items()}
    if shown := {name: counts for name, counts in runs.items() if name in DEFAULT}:
        made = card(shown, on)
        text, n = MARKED.subn(lambda at: at[1] + made + at[2], args.document.read_text("utf-8"))
        if not n:
            sys.exit(f"error: {args.document} has no <!-- scorecard --> and <!-- end scorecard -->.")
        args.document.write_text(text, "utf-8")
    print(verdict(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
