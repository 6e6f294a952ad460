"""Make a table by contract of runs of the suite: python -m conformance.scorecard DOCUMENT FILE...

A FILE is what --report wrote in an environment of tox.ini, and has its name: .tox/scorecards/stock.jsonl. The table is
of the default release, patched and stock. The line about failures is of all files.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from conformance import ROOT
from conformance.arguments import parser
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_FINISHED, REFUSED, SKIPPED, Result, Results, read
from conformance.tables import table

REST = "everything else"
CONTRACTS = [*re.findall(r"^## (C\d+ .+)$", (ROOT / "docs" / "contracts.md").read_text("utf-8"), re.MULTILINE), REST]
PASSED, FAILED, WRONG = "passed", "failed", "wrong"
# What a cell says of tests that did not pass, in this order, and the light of the first of them.
LIGHTS = {FAILED: "🔴", WRONG: "🟡", REFUSED: "🟡", SKIPPED: "⚪", ABSENT: "⚪"}
# A file of a contract.
FILE = re.compile(r"contracts/test_c(\d+)_")
MARKED = re.compile(r"(<!-- scorecard -->\n).*?(<!-- end scorecard -->)", re.DOTALL)
# How many tests of each contract had which outcome.
Counts = dict[str, Counter[str]]


def counted(results: Results) -> Counts:
    counts: Counts = {contract: Counter() for contract in CONTRACTS}
    for test, one in results.items():
        counts[contract_of(test, one)][outcome(one)] += 1
    return counts


def contract_of(test: str, one: Result) -> str:
    """The contract that a mark names, or else that of the file."""
    file = FILE.search(test)
    short = one.contract or one.asked.split(" ")[0] or (f"C{file[1]}" if file else "")
    return next((name for name in CONTRACTS if name.split()[0] == short), REST)


def outcome(one: Result) -> str:
    if one.outcome == HOLDS:
        # It may pass although it is expected to fail.
        return FAILED if one.message else PASSED
    if one.expected:
        return one.expected.partition(":")[0].lower()
    return {BROKEN: FAILED, NOT_FINISHED: FAILED, REFUSED: REFUSED, ABSENT: ABSENT}.get(one.outcome, SKIPPED)


def cell(counts: Counter[str], tests: int) -> str:
    """How many of so many tests pass. What a run does not count itself is not offered: a file that does not import is
    one test, whatever it holds."""
    counts = counts | Counter({ABSENT: tests - counts.total() + counts[ABSENT]})
    rest = [word for word in LIGHTS if counts[word]]
    light = LIGHTS[rest[0]] if rest else "🟢"
    return ", ".join([f"{light} {counts[PASSED]:,}", *(f"{counts[word]:,} {word}" for word in rest)])


def verdict(runs: dict[str, Counts]) -> str:
    """What fails that should not, in one line."""
    failed = {name: sum(one[FAILED] for one in counts.values()) for name, counts in runs.items()}
    if any(failed.values()):
        return f"**Not as expected**: {'; '.join(f'{name} has {n:,} failed' for name, n in failed.items() if n)}."
    return f"**As expected**: in {', '.join(failed)} no tests fail but those that should."


def card(runs: dict[str, Counts], on: dict[str, str]) -> str:
    """A line for each contract, with the tests of the first run as the whole of it."""
    first, *_ = runs.values()
    lines = [[name, *(cell(one[name], first[name].total()) for one in runs.values())] for name in CONTRACTS]
    text = table(["Contract", *runs], lines)
    return f"{verdict(runs)}\n\n{text}\n\n" + "".join(f"- {name}: {on[name]}\n" for name in runs)


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__, "python -m conformance.scorecard")
    options.add_argument("document", type=Path, metavar="DOCUMENT")
    options.add_argument("files", nargs="+", type=Path, metavar="FILE")
    args = options.parse_args(arguments)
    found = {file.stem: read(file) for file in args.files}
    on, runs = {name: on for name, (on, _) in found.items()}, {name: counted(one) for name, (_, one) in found.items()}
    if shown := {name: counts for name, counts in runs.items() if name in ("patched", "stock")}:
        text, n = MARKED.subn(lambda at: at[1] + card(shown, on) + at[2], args.document.read_text("utf-8"))
        if not n:
            sys.exit(f"error: {args.document} has no <!-- scorecard --> and <!-- end scorecard -->.")
        args.document.write_text(text, "utf-8")
    print(verdict(runs))
    return 0


def files() -> Iterator[str]:
    """A line for each file that tests contracts, by its name and its marks."""
    for path in sorted((ROOT / "conformance").rglob("test_*.py")):
        found = set(re.findall(r'mark\.(?:asked|contract)\("C(\d+)\b', path.read_text("utf-8")))
        found |= set(FILE.findall(path.as_posix()))
        if found and path.parent.name not in ("judging", "repository"):
            yield f"- {path.relative_to(ROOT).as_posix()}: {', '.join(f'C{n}' for n in sorted(map(int, found)))}"


if __name__ == "__main__":
    sys.exit(main())
