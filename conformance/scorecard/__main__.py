"""Make a table by contract of runs of the suite: python -m conformance.scorecard FILE...

A FILE is what --report wrote in an environment of tox.ini, and has its name: .tox/scorecards/stock.jsonl. The page has
all files, and the tests that did not pass; the table of a document has the default release, patched and stock.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from conformance.arguments import parser
from conformance.judging.results import BROKEN, HOLDS, NOT_FINISHED, REFUSED, SKIPPED, Result, kind
from conformance.judging.results import read as results_of

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
ROWS = CONTRACTS | {REST: "cache kinds, architectures, commands, chat, server, upstream's tests, surface"}
PASSED, FAILED, EXPECTED, NEEDED = "passed", "failed", "expected to fail", "needs the series"
# What a cell says of tests that did not pass, in this order, and the light of the first of them.
LIGHTS = {FAILED: "🔴", "wrong": "🟡", "refused": "🟡", EXPECTED: "🟡", SKIPPED: "⚪", NEEDED: "⚪"}
MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
# The columns of a document.
DEFAULT = ("patched", "stock")


@dataclass
class Run:
    name: str
    # The versions and the device.
    on: str = ""
    rows: dict[str, Counter[str]] = field(default_factory=lambda: {row: Counter() for row in ROWS})
    # The tests that did not pass, by outcome and reason.
    why: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def total(self, outcome: str) -> int:
        return sum(row[outcome] for row in self.rows.values())


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
        return {"no such API": NEEDED, "": EXPECTED}.get(kind(one.expected), kind(one.expected)), one.expected
    if one.outcome in (BROKEN, NOT_FINISHED):
        return FAILED, one.said
    word = "" if one.outcome == SKIPPED else f"{one.outcome}: "
    return (REFUSED if one.outcome == REFUSED else SKIPPED), word + one.said


def cell(told: Counter[str], tests: int) -> str:
    """How many of so many tests pass. What a run does not count itself needs the series: a file that does not import
    is one test, whatever it holds."""
    needed = max(tests - sum(n for said, n in told.items() if said != NEEDED), 0)
    if needed == tests:
        return f"⚪ {NEEDED}" if tests else "—"
    told = Counter({**told, NEEDED: needed})
    rest = [said for said in LIGHTS if told[said]]
    if not rest:
        return f"🟢 all {tests:,} pass"
    counts = ", ".join(f"{told[said]:,} {said}" for said in rest)
    if needed > 1:
        counts = counts.replace("needs", "need")
    return f"{LIGHTS[rest[0]]} {told[PASSED]:,} of {tests:,} pass; {counts}"


def verdict(runs: Sequence[Run]) -> str:
    """What fails that should not, in one line."""
    wrong = [f"{run.name} has {run.total(FAILED):,} failed" for run in runs if run.total(FAILED)]
    if wrong:
        return f"**Not as expected**: {'; '.join(wrong)}."
    return f"**As expected**: in {', '.join(run.name for run in runs)} no tests fail but those that should."


def table(runs: Sequence[Run]) -> str:
    """A line for each contract, with the tests of the run with the series as the whole of it."""
    named = {run.name: run for run in runs}
    lines = [["Contract", "What it says", *named], ["---"] * (2 + len(runs))]
    for row, what in ROWS.items():
        wholes = [named.get(run.name.replace("stock", "patched"), run).rows[row].total() for run in runs]
        lines.append([row, what, *(cell(run.rows[row], n) for run, n in zip(runs, wholes, strict=True))])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{verdict(runs)}\n\n{text}\n" + "".join(f"- {run.name}: {run.on}\n" for run in runs)


def reasons(run: Run) -> Iterable[str]:
    """A line for each reason why tests did not pass, with these tests folded in."""
    for (said, reason), tests in run.why.items():
        text = f"{run.name}: {len(tests):,} {said}. {escape(reason)}"
        yield f"<details><summary>{text}</summary><pre>{escape(chr(10).join(tests))}</pre></details>\n"


def main(arguments: list[str] | None = None) -> int:
    asked = parser(__doc__, "python -m conformance.scorecard")
    asked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    asked.add_argument("--page", type=Path, metavar="FILE", help="write the page, in Markdown")
    asked.add_argument("--readme", type=Path, metavar="FILE", help="put the table between the markers of a document")
    args = asked.parse_args(arguments)
    try:
        runs = [read(path) for path in args.files]
        if args.page:
            page = ["# The scorecard\n\n", table(runs), "\n", *(line for run in runs for line in reasons(run))]
            args.page.write_text("".join(page), "utf-8")
        if args.readme and (shown := [run for run in runs if run.name in DEFAULT]):
            text, n = MARKED.subn(lambda found: found[1] + table(shown) + found[2], args.readme.read_text("utf-8"))
            if not n:
                raise ValueError(f"{args.readme} has no <!-- scorecard --> and <!-- end scorecard -->.")
            args.readme.write_text(text, "utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(verdict(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
