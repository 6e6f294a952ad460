"""Test which contracts a source tree of mlx-lm keeps, and compare it with another one. docs/releases.md explains it.

TREE and --base name a release on the package index (0.33.0), a directory, or a git ref of a clone (~/mlx-lm@my-branch).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from environments import Environment, base_of, environment
from pin import ROOT, Refused, ended

sys.path.insert(0, str(ROOT))
from conformance.judging.difference import differences
from conformance.judging.ran import changed_files, looked_at
from conformance.judging.results import NOT_FINISHED, PARTS, Results
from conformance.judging.run import LIMIT, NotAsked, Run
from conformance.judging.screen import Judgement, Progress, markdown, screen

COULD_NOT = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/judge.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 nothing broke, 1 something did, 2 it could not be judged, or some was not called or not "
        "finished",
    )
    parser.add_argument("tree", metavar="TREE", help="the source tree to test")
    parser.add_argument(
        "--base", metavar="TREE", help="the tree to compare with (default: where a branch began, or the release before)"
    )
    parser.add_argument(
        "--upstream", metavar="CLONE", type=Path, help="a clone of mlx-lm: the base is the newest commit that both have"
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
        "--limit",
        metavar="S",
        type=float,
        default=LIMIT,
        help="stop a test after S seconds (default: %(default)g)",
    )
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write all of the result as Markdown, for a review"
    )
    return parser.parse_args()


def of(name: str, paths: list[str]) -> bool:
    """Whether a file of mlx_lm fits one of these patterns."""
    return any(re.match(path, name) for path in paths)


def parts_of(args: argparse.Namespace, base: Path, tree: Path) -> list[str]:
    """The parts that are named, or those whose paths the tree changes."""
    if args.only:
        return list(dict.fromkeys(args.only))
    changed = changed_files(base, tree)
    touched = [part for part, (_, paths) in PARTS.items() if any(of(name, [paths]) for name in changed)]
    return list(PARTS) if args.all or args.adapter else touched or list(PARTS)


def judge(args: argparse.Namespace) -> int:
    start, progress = time.monotonic(), Progress()
    base_name = args.base or base_of(args.tree, args.upstream)

    def run_of(at: Environment, adapters: list[str]) -> Run:
        named = [str(Path(name).resolve()) if Path(name).is_file() else name for name in adapters]
        folder = Path(scratch.enter_context(TemporaryDirectory(dir=at.folder, prefix="run-")))
        return Run(at.python, folder, at.package, named, limit=args.limit, say=partial(progress.say, at.name))

    with ExitStack() as scratch:
        # The tree first: its name can be wrong.
        tree_at = scratch.enter_context(environment(args.tree))
        base_at = scratch.enter_context(environment(base_name))
        base, tree = run_of(base_at, args.base_adapter), run_of(tree_at, args.adapter)
        parts = parts_of(args, base.package, tree.package)
        print(f"asking {args.tree} and {base_name}: {', '.join(parts)}", flush=True)
        try:
            right, found = base.ask_once(parts, base_at.folder / "asked"), tree.ask(parts, coverage=True)
        except NotAsked as error:
            raise Refused(f"it could not be asked: {error}") from error
        finally:
            progress.end()
        # Of a part that is asked alone, what it is about.
        about = [PARTS[part][1] for part in (parts if args.only else PARTS)]
        changed = [name for name in changed_files(base.package, tree.package) if of(name, about) or not args.only]
        files = looked_at(base.package, tree.package, changed, tree.covered(changed))
    adapters = [f"--adapter={name}" for name in tree.adapters]
    pytest = [os.path.relpath(tree_at.python), "-m", "pytest", "-o", "addopts=", *adapters]
    again = [os.path.relpath(ROOT / "scripts" / "judge.sh"), args.tree, "--base", base_name, *adapters]
    groups = differences(right, found)
    judgement = Judgement((base_name, args.tree), found, groups, files, pytest=pytest, judge=again)
    file = args.markdown or tree_at.folder / "judged.md"
    file.write_text(markdown(judgement), "utf-8")
    print(screen(judgement))
    print(f"All of it: {os.path.relpath(file)}. It took {time.monotonic() - start:.0f} s.")
    print("".join(f"not asked: {test}: {found[test].said}\n" for test in unasked(found)), end="")
    return status(judgement)


def unasked(found: Results) -> list[str]:
    """The files of tests that need a name which the tree lacks."""
    return [test for test in found if test.endswith("::import")]


def status(judged: Judgement) -> int:
    if judged.bad:
        return 1
    stopped = any(one.outcome == NOT_FINISHED for one in judged.tree.values())
    uncalled = any(file.uncalled for file in judged.files)
    return COULD_NOT if stopped or uncalled or unasked(judged.tree) else 0


def main() -> int:
    args = parse_args()
    return ended(lambda: judge(args), COULD_NOT)


if __name__ == "__main__":
    sys.exit(main())
