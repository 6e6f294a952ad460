"""Show what a patch of the series changes, and whether its tests need it."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.series.change import FAILURES, Change, of_patch, with_and_without
from conformance.series.patches import PATCHES, git, name_of, unpack
from conformance.series.stand_in import with_model
from conformance.series.upstream_tests import KNOWN, outcome, related

# How pytest says which tests fail and why, also of a file that does not import, and the counts.
TOLD = re.compile(
    r"(?:(?:SUB)?FAILED|ERROR)\b[^:]*(tests/\S+.*)|E +((?:Import|ModuleNotFound)Error.*)|=*\s*(\d+ \w+.* in .*)"
)


def summary(said: str) -> str:
    """A line for each test that fails, of several subtests for the first, and the counts."""
    told = [next(filter(None, found.groups())) for line in said.splitlines() if (found := TOLD.match(line))]
    first = {line.partition(" - ")[0]: line for line in reversed(told)}
    return "\n".join(f"    {line[:120]}" for line in reversed(first.values()))


def run_own_tests(change: Change, folder: Path) -> list[str]:
    passed, failed = with_and_without(change, folder)
    print(f"  its tests, with it:\n{summary(passed.said)}\n  without it:\n{summary(failed.said)}", flush=True)
    faults = ["its tests fail with it"] if passed.returncode else []
    if failed.returncode not in FAILURES:
        faults.append("its tests pass without it" if change.tests() else "it has no test")
    return faults


def run_upstreams_tests(change: Change, folder: Path) -> list[str]:
    before, after = (unpack(commit, folder / commit[:12]) for commit in (change.before, change.after))
    tests = related(before, change.files())
    if not tests:
        print("  no test of upstream's imports what it changes")
        return []
    with ThreadPoolExecutor() as both:
        (n, failed_before), (m, failed) = both.map(outcome, map(with_model, (before, after)), [tests, tests])
    print(f"  upstream's {', '.join(tests)}: without it {n} pass, with it {m}; these fail with and without it:")
    for test in sorted(failed & failed_before):
        print(f"    {test}: {KNOWN.get(test, 'nobody has said why')}")
    return [f"{test} fails with it" for test in sorted(failed - failed_before - set(KNOWN))]


def review(change: Change) -> list[str]:
    """Print a report, and return the faults."""
    print(git("diff", "--stat", change.before, change.after).decode(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        faults = run_own_tests(change, folder) + run_upstreams_tests(change, folder / "upstream")
    print(f"  result: {'; '.join(faults) or 'it does what a patch has to do'}\n", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/review.sh", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    numbers = range(1, len(PATCHES) + 1)
    which.add_argument("number", metavar="N", nargs="?", type=int, choices=numbers, help="a patch, the first is 1")
    which.add_argument("--all", action="store_true", help="every patch of the series")
    args = parser.parse_args()
    faulty = False
    for number in numbers if args.all else [args.number]:
        print(name_of(PATCHES[number - 1]), flush=True)
        faulty |= bool(review(of_patch(number)))
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
