"""Show what a patch changes, and whether its tests need it: scripts/review.sh N, or scripts/review.sh DIRECTORY@REF

python -m conformance.series.review N              patch N of the series
python -m conformance.series.review --all          all of them, one after the other
python -m conformance.series.review ~/mlx-lm@REF   the last commit of a clone's ref; --against: all since it left that
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from conformance.series.change import FAILURES, Change, NoChange, by_kind, failures, of_patch, of_ref, with_and_without
from conformance.series.patches import PATCHES, commits, name_of
from conformance.series.surface import functions, modules, signature
from conformance.series.upstream_tests import KNOWN, outcome, related

# How many failing tests of each kind are named.
SHOWN = 6


def own_tests(patch: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(tests/test_\w+\.py)$", patch, re.MULTILINE)


@dataclass
class Report:
    """The lines of a report, and the faults that it found."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, *said: str) -> None:
        for i, line in enumerate(said or ("none",)):
            self.lines.append(f"  {what if i == 0 else '':10}{line}")


def public(tree: Path) -> dict[str, str]:
    """Every public function, method and class, with its signature."""
    found = {name: signature(node) for name, node in functions(tree).items()}
    classes = {f"{file}:{name}": "" for file, module in modules(tree) for name in _classes(module)}
    named = {name.removesuffix(".__init__"): takes for name, takes in (classes | found).items()}
    return {name: takes for name, takes in named.items() if not re.search(r"[:.]_", name)}


def _classes(module: object) -> list[str]:
    return [node.name for node in getattr(module, "body", []) if type(node).__name__ == "ClassDef"]


def names(before: Path, after: Path) -> list[str]:
    """The public names that a patch adds, removes and changes, a line each."""
    old, new = public(before), public(after)
    added = [f"added    {name}{new[name]}" for name in new if name not in old]
    removed = [f"removed  {name}{old[name]}" for name in old if name not in new]
    changed = [f"changed  {name}{new[name]}, was {old[name]}" for name in new if old.get(name, new[name]) != new[name]]
    return [*added, *removed, *changed]


def size(report: Report, change: Change) -> list[str]:
    counts = change.numbers()
    tests = [row for row in counts if row[2].startswith("tests/")]

    def lines(of: list[tuple[int, int, str]]) -> str:
        return f"+{sum(row[0] for row in of)} -{sum(row[1] for row in of)}"

    files = [name for _, _, name in counts]
    report.add("size", f"{lines(counts)} in {len(files)} files, of that {lines(tests)} in tests")
    report.add("files", *(f"{name} +{plus} -{minus}" for plus, minus, name in counts))
    return files


def build(report: Report, tree: Path, version: str) -> None:
    """Make the wheel of a tree."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        "dist",
        ".",
    ]
    label = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": version}
    done = subprocess.run(command, cwd=tree, env=os.environ | label, capture_output=True, text=True)
    built = [path.name for path in (tree / "dist").glob("*.whl")]
    report.add("build", *(built or done.stderr.strip().splitlines()[-3:]))
    if done.returncode or not built:
        report.faults.append("the tree as of this patch does not build")


def run_own_tests(report: Report, change: Change, folder: Path) -> None:
    passed, failed = with_and_without(change, folder, to_the_end=True)
    report.add("its tests", f"with it: {last_line(passed.said)}", f"without it: {last_count(failed.said)}")
    for what, tests in zip(("a wrong result", "for want of a name"), by_kind(failures(failed.said)), strict=True):
        if tests:
            named = [f"  {test.removeprefix('tests/')}  {how[:80]}" for test, how in tests[:SHOWN]]
            more = [f"  and {len(tests) - SHOWN} more"] * (len(tests) > SHOWN)
            report.add("", f"{len(tests)} fail without it, {what}:", *named, *more)
    if passed.returncode:
        report.faults.append("its tests fail with it")
    if failed.returncode not in FAILURES:
        report.faults.append("its tests pass without it" if change.tests() else "it has no test")


def last_count(said: str) -> str:
    counts = re.findall(r"^=*\s*(\d+ (?:passed|failed|error).*?)\s*=*$", said, re.MULTILINE)
    return counts[-1] if counts else last_line(said)


def last_line(said: str) -> str:
    """How a run of tests ended: the first error, or the count of pytest."""
    errors = re.findall(r"^(?:E +)?((?:\w+Error|\w+Exception)\b.*)$", said, re.MULTILINE)
    counts = re.findall(r"^=*\s*(\d+ (?:passed|failed|error).*?)\s*=*$", said, re.MULTILINE)
    return (errors or counts or said.strip().splitlines()[-1:] or ["no output"])[0][:110]


def run_upstreams_tests(report: Report, trees: list[Path], files: list[str]) -> None:
    tests = related(trees[0], files)
    if not tests:
        report.add("upstream", "no test of upstream's imports what it changes")
        return
    # Imported here: processes that run tests import this module, and must not load another mlx-lm than their tree's.
    from conformance.series.stand_in import write

    for tree in trees:
        write(tree)
    with ThreadPoolExecutor() as both:
        (before, failed_before), (after, failed) = both.map(outcome, trees, [tests, tests])
    worse = sorted(failed - failed_before - set(KNOWN))
    counts = f"without it {before} pass, {len(failed_before)} fail; with it {after}, {len(failed)}"
    always = [f"  {test}: {KNOWN.get(test, 'nobody has said why')}" for test in sorted(failed & failed_before)]
    report.add("upstream", *tests, counts, *["these fail with and without it:"] * bool(always), *always)
    report.faults += [f"{test} fails with it" for test in worse]


def review(change: Change) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        trees = [change.unpack(commit, folder / f"tree{i}") for i, commit in enumerate((change.before, change.after))]
        files = size(report, change)
        report.add("names", *names(*trees))
        build(report, trees[1], change.version)
        run_own_tests(report, change, folder)
        run_upstreams_tests(report, trees, files)
    return report


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
        "--against",
        metavar="REF",
        default="",
        help="the branch to merge into: review all commits since the ref left it",
    )
    args = parser.parse_args()
    faulty = 0
    try:
        for title, change in changes_of(args):
            print(title, flush=True)
            report = review(change)
            verdict = "; ".join(report.faults) or "it does what a patch has to do"
            print("\n".join([*report.lines, f"  {'result':10}{verdict}\n"]), flush=True)
            faulty += bool(report.faults)
    except NoChange as error:
        if last := os.environ.get("SAY_LAST"):
            # scripts/tox.sh shows it again, below what tox says at its end.
            Path(last).write_text(f"error: {error}\n")
        parser.error(str(error))
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
