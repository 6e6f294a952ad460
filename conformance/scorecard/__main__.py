"""Make a page and a table from runs of the suite: python -m conformance.scorecard FILE...

A FILE comes from pytest --scorecard=FILE (scripts/tox.sh writes them into .tox/scorecards). If two runs have the same
release, flavour, mlx and device, the later one counts. If they also have the same series, the tests that the later one
left out are kept. The page has every run, row and reason; the table has the default release with its newest mlx.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conformance.scorecard.cells import load
from conformance.scorecard.table import MARKED, filled, page, verdict


def main(arguments: list[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m conformance.scorecard", description=__doc__, formatter_class=form)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page, in Markdown")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the table between the markers of a document")
    args = parser.parse_args(arguments)
    try:
        runs = load(sorted(args.files, key=lambda file: file.stat().st_mtime))
        if args.readme and not MARKED.search(text := args.readme.read_text("utf-8")):
            raise ValueError(f"{args.readme} has no <!-- scorecard --> and <!-- end scorecard -->.")
        if args.readme:
            args.readme.write_text(filled(text, runs), "utf-8")
        if args.page:
            args.page.write_text(page(runs), "utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(verdict(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
