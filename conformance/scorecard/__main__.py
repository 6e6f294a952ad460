"""Make a page and a table from runs of the suite: python -m conformance.scorecard page|table|keep FILE...

A FILE comes from pytest --scorecard=FILE (scripts/tox.sh writes them into .tox/scorecards), or from keep. If two runs
have the same release, flavour, mlx and device, the later one counts. If they also have the same series, the parts that
the later one left out are kept.

page    one HTML file, without a script or a network
table   a table in Markdown of the default release with its newest mlx: printed, or put between the markers of --readme
keep    one file of all these runs, without the names of the tests that passed
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conformance.scorecard.cells import SuiteRun, kept, load
from conformance.scorecard.page import page
from conformance.scorecard.table import MARKED, filled, table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m conformance.scorecard", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name) for name in ("page", "table", "keep")}
    for one in made.values():
        one.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for name in ("page", "keep"):
        made[name].add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    made["table"].add_argument("--readme", type=Path, metavar="FILE", help="a document with the two markers")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parsed(arguments)
    try:
        runs = load(args.files)
        return written(args, runs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def written(args: argparse.Namespace, runs: list[SuiteRun]) -> int:
    if args.command == "page":
        args.out.write_text(page(runs), "utf-8")
    elif args.command == "keep":
        args.out.write_text(kept(runs), "utf-8")
    elif args.readme is None:
        print(table(runs), end="")
    else:
        text = args.readme.read_text("utf-8")
        if not MARKED.search(text):
            print(f"{args.readme} has no <!-- scorecard --> and <!-- end scorecard -->.", file=sys.stderr)
            return 1
        args.readme.write_text(filled(text, runs), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
