"""Test which contracts a source tree of mlx-lm keeps, and compare it with another one. docs/releases.md explains it.

TREE and --base name a release on the package index (0.33.0), a directory, or a git ref of a clone (~/mlx-lm@my-branch).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from add_release import add
from environments import JUDGED, RELEASE, Environment, base_of, environment
from pin import ROOT, Refused, Release, alone, ended, releases

sys.path.insert(0, str(ROOT))
from conformance.judging.difference import compared, differences, red
from conformance.judging.ran import changed_files, looked_at
from conformance.judging.results import PARTS
from conformance.judging.run import NotAsked, Run
from conformance.judging.screen import Judgement, markdown, screen

COULD_NOT = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/judge.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 nothing broke, 1 something did, 2 it could not be judged or pinned, or some was not "
        "called",
    )
    parser.add_argument("tree", metavar="TREE", help="the source tree to test")
    parser.add_argument(
        "--base", metavar="TREE", help="the tree to compare with (default: where a branch began, or the release before)"
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME|FILE",
        action="append",
        default=[],
        help="an adapter for TREE (default: all that fit)",
    )
    parser.add_argument("--base-adapter", metavar="NAME|FILE", action="append", default=[], help="one for the base")
    parser.add_argument("--only", choices=PARTS, action="append", help="ask only this part")
    parser.add_argument("--all", action="store_true", help="ask all parts, whatever the tree changes")
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write all of the result as Markdown, for a review"
    )
    parser.add_argument("--scorecard", metavar="FILE", type=Path, help="write the result as a column of the scorecard")
    parser.add_argument("--pin", action="store_true", help="also pin the release; docs/releases.md explains it")
    args = parser.parse_args()
    if args.scorecard and args.only:
        parser.error("a column of the scorecard is of all contracts: leave --only out")
    if args.pin and not RELEASE.fullmatch(args.tree):
        parser.error("--pin needs a release on the package index")
    return args


def run_of(at: Environment, side: str, adapters: list[str]) -> Run:
    named = [str(Path(name).resolve()) if Path(name).is_file() else name for name in adapters]
    return Run(at.python, at.folder / side, at.package, named)


def parts_of(args: argparse.Namespace, base: Path, tree: Path) -> list[str]:
    """The parts that are named, or those whose paths the tree changes."""
    if args.only:
        return list(dict.fromkeys(args.only))
    changed = changed_files(base, tree)
    touched = [part for part, (_, paths) in PARTS.items() if any(re.match(paths, name) for name in changed)]
    return list(PARTS) if args.all or args.scorecard or args.adapter else touched or list(PARTS)


def column(run: Run, parts: list[str], name: str) -> dict[str, Any]:
    """The parts of a run as one column of the scorecard."""
    made = [json.loads(run.scorecard(part).read_text()) for part in parts]
    rows: dict[str, dict[str, Any]] = {}
    for one in made:
        for row, tests in one["rows"].items():
            rows.setdefault(row, {}).update(tests)
    # All that is judged; rows that are not judged have no tests.
    about: dict[str, Any] = {"release": name, "flavour": "judged", "whole": True, "rows": rows}
    return {**made[0], **about}


def of_patches(said: str) -> list[str]:
    """The results in the table of port.sh, a patch each."""
    return re.findall(r"^\S+/\S+ +(clean|merged|conflict|already upstream) ", said, re.MULTILINE)


def series_fits(version: str) -> str:
    """What port.sh says of a release that is not pinned, in a sentence. A checkout with a conflict is not kept."""
    checkout = Release(version, "").checkout
    there = checkout.exists()
    done = subprocess.run([sys.executable, ROOT / "scripts" / "port.py", version], capture_output=True, text=True)
    results = of_patches(done.stdout)
    if done.returncode == 3 and not there:
        shutil.rmtree(checkout)
    if done.returncode not in (0, 3):
        said = done.stderr.strip().splitlines()
        return f"whether the series applies is not known: {said[-1].removeprefix('error: ') if said else 'no message'}"
    counts = ", ".join(f"{results.count(word)} {word}" for word in dict.fromkeys(results))
    what = "applies" if done.returncode == 0 else "does not apply as it is"
    return f"the series {what}: {counts} of {len(results)} patches; scripts/port.sh {version} says which"


def judged(args: argparse.Namespace) -> int:
    start = time.monotonic()
    base_name = args.base or base_of(args.tree)
    with alone():
        # The tree first: its name can be wrong.
        tree_at, base_at = (environment(name) for name in (args.tree, base_name))
        base, tree = run_of(base_at, "base", args.base_adapter), run_of(tree_at, "tree", args.adapter)
        parts = parts_of(args, base.package, tree.package)
        print(f"asking {args.tree} and {base_name}: {', '.join(parts)}", flush=True)
        try:
            right, found = base.ask_once(parts), tree.ask(parts, coverage=True)
        except NotAsked as error:
            raise Refused(f"it could not be asked: {error}") from error
        files = looked_at(base.package, tree.package, tree.covered())
    compared(right, found)
    command = [
        str(tree_at.python.relative_to(ROOT)),
        "-m",
        "pytest",
        "-o",
        "addopts=",
        *(f"--adapter={name}" for name in tree.adapters),
    ]
    judgement = Judgement((base_name, args.tree), right, found, differences(right, found), files, command)
    file = args.markdown or JUDGED / "last.md"
    file.write_text(markdown(judgement), "utf-8")
    print(screen(judgement))
    if RELEASE.fullmatch(args.tree) and args.tree not in releases()[0]:
        print(series_fits(args.tree))
    print(f"All of it: {os.path.relpath(file)}. It took {time.monotonic() - start:.0f} s.")
    if args.scorecard:
        args.scorecard.write_text(json.dumps(column(tree, parts, args.tree), indent=1) + "\n", "utf-8")
    # A file of tests that needs a name which the tree lacks.
    unasked = [f"{test}: {one.said}" for test, one in found.items() if test.endswith("::import")]
    print("".join(f"not asked: {said}\n" for said in unasked), end="")
    return 1 if red(judgement.groups) else COULD_NOT if unasked or any(one.uncalled for one in files) else 0


def main() -> int:
    args = parse_args()
    return ended(lambda: judge(args), COULD_NOT)


def judge(args: argparse.Namespace) -> int:
    code = judged(args)
    if args.pin:
        add(args.tree)
    return code


if __name__ == "__main__":
    sys.exit(main())
