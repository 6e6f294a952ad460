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
from pathlib import Path
from tempfile import TemporaryDirectory

from environments import base_of, environment
from pin import ROOT, Refused, ended, parser

sys.path.insert(0, str(ROOT))
from conformance.judging.difference import STOPPED, differences
from conformance.judging.ran import changed_files, looked_at
from conformance.judging.results import NOT_FINISHED, PARTS, asked_files
from conformance.judging.run import LIMIT, SEED, NotAsked, Run
from conformance.judging.screen import Judgement

COULD_NOT = 2


def parse_args() -> argparse.Namespace:
    status = "exit status: 0 nothing broke, 1 something did, 2 not judged, or some was not called or not finished"
    options = parser("judge.sh", __doc__, epilog=status)
    add = options.add_argument
    add("tree", metavar="TREE", help="the source tree to test")
    add("--base", metavar="TREE", help="the one to compare with (default: where a branch began, or the release before)")
    add("--upstream", metavar="CLONE", type=Path, help="of mlx-lm: the base is the newest commit that both have")
    add("--adapter", metavar="NAME|FILE", action="append", default=[], help="one for TREE (default: all that fit)")
    add("--base-adapter", metavar="NAME|FILE", action="append", default=[], help="one for the base")
    add("--only", choices=PARTS, action="append", help="ask only this part")
    add("--all", action="store_true", help="ask all parts, whatever the tree changes")
    add("--limit", metavar="S", type=float, default=LIMIT, help="stop a test after S seconds (default: %(default)g)")
    add("--markdown", metavar="FILE", type=Path, help="write all of the result as Markdown, for a review")
    return options.parse_args()


def judge(args: argparse.Namespace) -> int:
    start = time.monotonic()
    base_name = args.base or base_of(args.tree, args.upstream)

    def run_of(at: Path, adapters: list[str]) -> Run:
        named = [str(Path(name).resolve()) if Path(name).is_file() else name for name in adapters]
        folder = Path(scratch.enter_context(TemporaryDirectory(dir=at, prefix="run-")))
        package = next((at / "venv" / "lib").glob("python*/site-packages/mlx_lm"))
        return Run(at / "venv" / "bin" / "python", folder, package, named, limit=args.limit)

    with ExitStack() as scratch:
        # The tree first: its name can be wrong.
        tree_at = scratch.enter_context(environment(args.tree))
        base_at = scratch.enter_context(environment(base_name))
        base, tree = run_of(base_at, args.base_adapter), run_of(tree_at, args.adapter)
        changed = changed_files(base.package, tree.package)
        about = {part: {name for name in changed if re.match(PARTS[part][1], name)} for part in PARTS}
        touched = [] if args.all or args.adapter else [part for part in PARTS if about[part]]
        parts = [part for part in PARTS if part in (args.only or touched or PARTS)]
        try:
            # The tree first: it may not be importable.
            print(f"asking {args.tree}: {', '.join(parts)}", flush=True)
            found = tree.ask(asked_files(parts), coverage=True)
            print(f"asking {base_name}", flush=True)
            right = base.ask_once(asked_files(parts), base_at / "asked")
        except NotAsked as error:
            raise Refused(f"it could not be asked: {error}") from error
        # Of a part that is asked alone, what it is about.
        changed = [name for name in changed if not args.only or any(name in about[part] for part in parts)]
        files = looked_at(base.package, tree.package, changed, tree.covered(changed))
    adapters = [f"--adapter={name}" for name in tree.adapters]
    python = os.path.relpath(tree_at / "venv" / "bin" / "python")
    pytest = ["env", f"CONFORMANCE_SEED={SEED}", python, "-m", "pytest", "-o", "addopts=", *adapters]
    again = [os.path.relpath(ROOT / "scripts" / "judge.sh"), args.tree, "--base", base_name, *adapters]
    judged = Judgement((base_name, args.tree), found, differences(right, found), files, pytest, again)
    file = args.markdown or tree_at / "judged.md"
    file.write_text(judged.markdown(), "utf-8")
    print(f"{judged.screen()}\n\nAll of it: {os.path.relpath(file)}. It took {time.monotonic() - start:.0f} s.")
    # Files of tests that need a name which the tree lacks.
    unasked = {test: one for test, one in found.items() if test.endswith("::import")}
    print("".join(f"not asked: {test}: {one.said}\n" for test, one in unasked.items()), end="")
    return status(judged)


def status(judged: Judgement) -> int:
    if judged.bad:
        return 1
    left_out = any(group.kind == STOPPED for group in judged.groups)
    left_out |= any(one.outcome == NOT_FINISHED or test.endswith("::import") for test, one in judged.tree.items())
    return COULD_NOT if left_out or any(file.never for file in judged.files) else 0


if __name__ == "__main__":
    args = parse_args()
    sys.exit(ended(lambda: judge(args), COULD_NOT))
