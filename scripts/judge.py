"""Test which contracts a source tree of mlx-lm keeps, and compare it with another one. docs/releases.md explains it.

TREE and --base name a release on the package index (0.33.0), a directory, or a git ref of a clone (~/mlx-lm@my-branch).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from add_release import add
from environments import JUDGED, RELEASE, Environment, environment
from pin import ROOT, Refused, Release, alone, ended, releases

sys.path.insert(0, str(ROOT))
from conformance.judging.column import column
from conformance.judging.compare import differences, red
from conformance.judging.screen import markdown, reproductions, screen

PARTS = ("caches", "decoding", "commands", "server")
COULD_NOT = 2
SIDES = ("base", "tree")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/judge.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 nothing broke, 1 something did, 2 it could not be judged or pinned",
    )
    parser.add_argument("tree", metavar="TREE", help="the source tree to test")
    parser.add_argument("--base", metavar="TREE", help="the tree to compare with (default: the pinned default release)")
    parser.add_argument("--adapter", metavar="NAME|FILE", help="the adapter for TREE (default: the first that fits)")
    parser.add_argument(
        "--base-adapter", metavar="NAME|FILE", help="the adapter for the base (default: the first that fits)"
    )
    parser.add_argument("--only", choices=PARTS, help="judge only this part of the contracts")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the result as Markdown")
    parser.add_argument("--scorecard", metavar="FILE", type=Path, help="write the result as a column of the scorecard")
    parser.add_argument("--pin", action="store_true", help="also pin the release; docs/releases.md explains it")
    args = parser.parse_args()
    if args.scorecard and args.only:
        parser.error("a column of the scorecard is of all contracts: leave --only out")
    if args.pin and not RELEASE.fullmatch(args.tree):
        parser.error("--pin needs a release on the package index")
    return args


def started(at: Environment, side: str, adapter: str | None, only: str | None) -> subprocess.Popen[str]:
    command = [str(at.python), "-m", "conformance.judging", "--out", str(at.result(side))]
    command += ["--adapter", adapter] if adapter else []
    command += ["--only", only] if only else []
    at.result(side).unlink(missing_ok=True)
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finished(at: Environment, side: str, run: subprocess.Popen[str]) -> dict[str, Any]:
    said = run.communicate()[1].strip().splitlines()
    if run.returncode or not at.result(side).exists():
        raise Refused(f"{at.name}: {said[-1] if said else 'it ended without a message'}")
    judged: dict[str, Any] = json.loads(at.result(side).read_text())
    return judged


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
    base_name = args.base or releases()[1]
    adapter = str(Path(args.adapter).resolve()) if args.adapter and Path(args.adapter).is_file() else args.adapter
    with alone():
        # The tree first: its name can be wrong.
        tree_at = environment(args.tree)
        sides = [environment(base_name), tree_at]
        print(f"asking {args.tree} and {base_name}", flush=True)
        asked = list(zip(sides, SIDES, (args.base_adapter, adapter), strict=True))
        runs = [started(at, side, how, args.only) for at, side, how in asked]
        base, tree = (finished(at, side, run) for (at, side, _), run in zip(asked, runs, strict=True))
    names = base_name, args.tree
    print(screen(base, tree, names))
    if RELEASE.fullmatch(args.tree) and args.tree not in releases()[0]:
        print(series_fits(args.tree))
    for file in reproductions(base, tree, JUDGED / "broken"):
        print(f"reproduction: {file.relative_to(ROOT)}")
    print(f"It took {time.monotonic() - start:.0f} s.")
    if args.markdown:
        args.markdown.write_text(markdown(base, tree, names), "utf-8")
    if args.scorecard:
        args.scorecard.write_text(json.dumps(column(tree, args.tree), indent=1) + "\n", "utf-8")
    broken = red(differences(base["cases"], tree["cases"]))
    return 1 if broken else COULD_NOT if tree["unasked"] else 0


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
