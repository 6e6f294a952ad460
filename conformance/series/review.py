"""Show what a patch changes, and whether its tests need it: scripts/review.sh N, or scripts/review.sh DIRECTORY@REF

python -m conformance.series.review N              patch N of the series
python -m conformance.series.review --all          all of them, one after the other
python -m conformance.series.review ~/mlx-lm@REF   the last commit of a clone's ref; --against: all since it left that
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.series.change import FAILURES, Change, NoChange, of_patch, of_ref, with_and_without
from conformance.series.patches import PATCHES, commits, name_of
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
    before, after = (change.unpack(commit, folder / commit[:12]) for commit in (change.before, change.after))
    tests = related(before, [name for _, _, name in change.numbers()])
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
    print(change.git("diff", "--stat", change.before, change.after).decode(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        faults = run_own_tests(change, folder) + run_upstreams_tests(change, folder / "upstream")
    print(f"  result: {'; '.join(faults) or 'it does what a patch has to do'}\n", flush=True)
    return faults


def changes_of(args: argparse.Namespace) -> list[tuple[str, Change]]:
    """The changes to review, each with its title."""
    if not args.all and not args.which.isdigit():
        return [(args.which, of_ref(args.which, args.against))]
    last = len(commits()) - 1
    if not args.all and not 1 <= int(args.which) <= last:
        raise NoChange(f"the series has the patches 1 to {last}")
    numbers = range(1, last + 1) if args.all else [int(args.which)]
    return [(name_of(PATCHES[number - 1]), of_patch(number)) for number in numbers]


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/review.sh", description=__doc__, formatter_class=form)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("which", metavar="N|DIR@REF", nargs="?", help="a patch, or a ref of a clone")
    which.add_argument("--all", action="store_true", help="every patch of the series")
    parser.add_argument(
        "--against", metavar="REF", default="", help="review all commits since the ref left this branch"
    )
    args = parser.parse_args()
    faulty = False
    try:
        for title, change in changes_of(args):
            print(title, flush=True)
            faulty |= bool(review(change))
    except NoChange as error:
        parser.error(str(error))
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
