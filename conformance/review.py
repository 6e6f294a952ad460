"""What one patch of the series changes, and whether its tests need it: scripts/review.sh N

python -m conformance.review N      patch N
python -m conformance.review --all  all of them, one after the other
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from conformance.changed import changed_tests
from conformance.series import PATCHES, checkout, commits, git, unpack
from conformance.surface import functions, modules, signature
from conformance.trees import Done, run_tests
from conformance.upstream import AS_ON_STOCK, KNOWN, outcome, related, with_model

# How pytest ends when a test fails, when a file does not import, and when it is asked for tests of such a file.
FAILURES = (1, 2, 4)


def own_tests(patch: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(tests/test_\w+\.py)$", patch, re.MULTILINE)


def selected(file: str, before: Path, after: Path) -> list[str]:
    """What of a patch's tests is its own: those that it adds or changes, or the file if it changes what they share."""
    old = (before / file).read_text() if (before / file).exists() else ""
    return [f"{file}::{name}" for name in changed_tests(old, (after / file).read_text())] or [file]


def with_and_without(number: int, folder: Path) -> tuple[Done, Done]:
    """Run a patch's own tests on the series up to it, and on the series up to the one before."""
    history = commits()
    with_patch, without = (with_model(unpack(history[n], folder / str(n))) for n in (number, number - 1))
    files = own_tests(PATCHES[number - 1].read_text())
    tests = [test for file in files for test in selected(file, without, with_patch)]
    passed = run_tests(with_patch, *tests, *AS_ON_STOCK)
    for file in files:
        (without / file).write_bytes((with_patch / file).read_bytes())
    return passed, run_tests(without, *tests, *AS_ON_STOCK)


@dataclass
class Report:
    """The lines of a report, and what is wrong."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, *said: str) -> None:
        for i, line in enumerate(said or ("none",)):
            self.lines.append(f"  {what if i == 0 else '':10}{line}")


def public(tree: Path) -> dict[str, str]:
    """Every public function, method and class with what it takes."""
    found = {name: signature(node) for name, node in functions(tree).items()}
    classes = {f"{file}:{name}": "" for file, module in modules(tree) for name in _classes(module)}
    named = {name.removesuffix(".__init__"): takes for name, takes in (classes | found).items()}
    return {name: takes for name, takes in named.items() if not re.search(r"[:.]_", name)}


def _classes(module: object) -> list[str]:
    return [node.name for node in getattr(module, "body", []) if type(node).__name__ == "ClassDef"]


def names(before: Path, after: Path) -> list[str]:
    """What a patch adds to, removes from and changes in the public names."""
    old, new = public(before), public(after)
    added = [f"added    {name}{new[name]}" for name in new if name not in old]
    removed = [f"removed  {name}{old[name]}" for name in old if name not in new]
    changed = [f"changed  {name}{new[name]}, was {old[name]}" for name in new if old.get(name, new[name]) != new[name]]
    return [*added, *removed, *changed]


def size(report: Report, number: int) -> list[str]:
    history = commits()
    rows = [
        line.split("\t") for line in git("diff", "--numstat", *history[number - 1 : number + 1]).decode().split("\n")
    ]
    counts = [(int(plus), int(minus), name) for plus, minus, name in (row for row in rows if len(row) == 3)]
    tests = [row for row in counts if row[2].startswith("tests/")]

    def lines(of: list[tuple[int, int, str]]) -> str:
        return f"+{sum(row[0] for row in of)} -{sum(row[1] for row in of)}"

    files = [name for _, _, name in counts]
    report.add("size", f"{lines(counts)} in {len(files)} files, of that {lines(tests)} in tests")
    report.add("files", *(f"{name} +{plus} -{minus}" for plus, minus, name in counts))
    return files


def build(report: Report, tree: Path, number: int) -> None:
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
    version = checkout().name.removeprefix("mlx-lm-")
    label = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": f"{version}+lookup.{number}"}
    done = subprocess.run(command, cwd=tree, env=os.environ | label, capture_output=True, text=True)
    built = [path.name for path in (tree / "dist").glob("*.whl")]
    report.add("build", *(built or done.stderr.strip().splitlines()[-3:]))
    if done.returncode or not built:
        report.faults.append("the tree as of this patch does not build")


def run_own_tests(report: Report, number: int, folder: Path) -> None:
    passed, failed = with_and_without(number, folder)
    report.add("its tests", f"with it: {last_line(passed.said)}", f"without it: {last_line(failed.said)}")
    if passed.returncode:
        report.faults.append("its tests fail with it")
    if failed.returncode not in FAILURES:
        report.faults.append("its tests pass without it")


def last_line(said: str) -> str:
    """How a run of tests ended: the first error, or pytest's count."""
    errors = re.findall(r"^(?:E +)?((?:\w+Error|\w+Exception)\b.*)$", said, re.MULTILINE)
    counts = re.findall(r"^=*\s*(\d+ (?:passed|failed|error).*?)\s*=*$", said, re.MULTILINE)
    return (errors or counts or said.strip().splitlines()[-1:] or ["nothing was said"])[0][:110]


def run_upstreams_tests(report: Report, trees: list[Path], files: list[str]) -> None:
    tests = related(trees[0], files)
    if not tests:
        report.add("upstream", "no test of upstream's imports what it changes")
        return
    # Not above: processes that run tests import this module again, and must not have an mlx-lm before the tree's.
    from conformance.stand_in import write

    for tree in trees:
        write(tree)
    (before, failed_before), (after, failed) = (outcome(tree, tests) for tree in trees)
    worse = sorted(failed - failed_before - set(KNOWN))
    report.add(
        "upstream", *tests, f"without it {before} pass, {len(failed_before)} fail; with it {after}, {len(failed)}"
    )
    report.faults += [f"{test} fails with it" for test in worse]


def review(number: int) -> Report:
    report, history = Report(), commits()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        trees = [unpack(history[n], folder / f"tree{n}") for n in (number - 1, number)]
        files = size(report, number)
        report.add("names", *names(*trees))
        build(report, trees[1], number)
        run_own_tests(report, number, folder)
        run_upstreams_tests(report, trees, files)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/review.sh", description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("number", metavar="N", nargs="?", type=int, help="the number of a patch")
    which.add_argument("--all", action="store_true", help="every patch of the series")
    args = parser.parse_args()
    last = len(commits()) - 1
    if not args.all and not 1 <= args.number <= last:
        parser.error(f"the series has the patches 1 to {last}")
    faulty = 0
    for number in range(1, last + 1) if args.all else [args.number]:
        print(PATCHES[number - 1].stem, flush=True)
        report = review(number)
        verdict = "; ".join(report.faults) or "it does what a patch has to do"
        print("\n".join([*report.lines, f"  {'result':10}{verdict}\n"]), flush=True)
        faulty += bool(report.faults)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
