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
from conformance.judging.changes import change, changed_files
from conformance.judging.difference import differences
from conformance.judging.results import PARTS, asked_files
from conformance.judging.run import LIMIT, SEED, Asked, NotAsked
from conformance.judging.screen import NOT_JUDGED, Judgement


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


def main(args: argparse.Namespace) -> int:
    start = time.monotonic()
    base_name = args.base or base_of(args.tree, args.upstream)

    def installed(at: Path, adapters: list[str]) -> Asked:
        named = [str(Path(name).resolve()) if Path(name).is_file() else name for name in adapters]
        folder = Path(scratch.enter_context(TemporaryDirectory(dir=at, prefix="run-")))
        package = next((at / "venv" / "lib").glob("python*/site-packages/mlx_lm"))
        return Asked(at / "venv" / "bin" / "python", folder, package, named, limit=args.limit)

    with ExitStack() as scratch:
        # The tree first: its name can be wrong.
        tree_at = scratch.enter_context(environment(args.tree))
        base_at = scratch.enter_context(environment(base_name))
        base, tree = installed(base_at, args.base_adapter), installed(tree_at, args.adapter)
        changed = changed_files(base.package, tree.package)
        about = {part: {name for name in changed if re.match(PARTS[part][1], name)} for part in PARTS}
        touched = [] if args.all or args.adapter else [part for part in PARTS if about[part]]
        parts = [part for part in PARTS if part in (args.only or touched or PARTS)]
        files = asked_files(parts)
        try:
            # The tree first: it may not be importable.
            print(f"1 of 2: asking {args.tree}: {', '.join(parts)}", flush=True)
            found = tree.ask(files, coverage=True)
            print(f"2 of 2: asking {base_name}", flush=True)
            right = base.ask_once(files, base_at / "asked")
        except NotAsked as error:
            raise Refused(f"it could not be asked: {error}") from error
        # Of a part that is asked alone, what it is about.
        changed = [name for name in changed if not args.only or any(name in about[part] for part in parts)]
        covered = tree.covered(changed).items()
        changes = [change(base.package, tree.package, name, coverage) for name, coverage in covered]
        changes = [one for one in changes if one.lines]
    adapters = [f"--adapter={name}" for name in tree.adapters]
    pytest = [f"CONFORMANCE_SEED={SEED}", os.path.relpath(tree.python), "-m", "pytest", "-o", "addopts=", *adapters]
    again = [os.path.relpath(ROOT / "scripts" / "judge.sh"), args.tree, "--base", base_name, *adapters]
    judged = Judgement((base_name, args.tree), found, differences(right, found), changes, pytest, again)
    file = args.markdown or tree_at / "judged.md"
    file.write_text(judged.markdown(), "utf-8")
    print(f"{judged.screen()}\n\nAll of it: {os.path.relpath(file)}. It took {time.monotonic() - start:.0f} s.")
    # Files of tests that need a name which the tree lacks.
    unasked = {test: one for test, one in found.items() if test.endswith("::import")}
    print("".join(f"not asked: {test}: {one.message}\n" for test, one in unasked.items()), end="")
    return judged.verdict()[0]


if __name__ == "__main__":
    args = parse_args()
    sys.exit(ended(lambda: main(args), NOT_JUDGED))
