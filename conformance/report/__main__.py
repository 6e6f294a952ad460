"""Report how one model is decoded on this machine, or put reports of several machines into a table.

scripts/report.sh --model PATH_OR_REPO        # about ten minutes: writes report-*.json and report-*.md
scripts/report.sh --merge report-*.json       # updates docs/benchmarks/reports.json and the table of docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.report.files import Unreadable, merged, read
from conformance.report.page import filled, page
from conformance.smollm2 import path_of

KEPT, DOCUMENT = Path("benchmarks", "reports.json"), Path("benchmarks.md")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/report.sh", description=__doc__, formatter_class=form)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="a directory, a Hugging Face repo, or smollm2 after scripts/model.sh")
    what.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="reports to put into the table")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where to write the report (default: here)"
    )
    parser.add_argument("--device", choices=["cpu", "gpu"], help="where to decode (default: what mlx chooses)")
    parser.add_argument(
        "--minutes", type=float, default=10, help="start no new part after this time (default: %(default)s)"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not args.out.is_dir():
        parser.error(f"--out: {args.out} is no folder.")
    return args


def merge(args: argparse.Namespace) -> int:
    """Put reports into the table. If one file is no report, nothing is written."""
    kept, document = args.docs / KEPT, args.docs / DOCUMENT
    new = [read(path) for path in args.merge]
    reports = merged(json.loads(kept.read_text("utf-8")) if kept.exists() else [], new)
    kept.write_text(json.dumps(reports, indent=1) + "\n", "utf-8")
    document.write_text(filled(document.read_text("utf-8"), reports), "utf-8")
    print(f"{len(new)} of {len(reports)} reports are new or newer: {kept}, {document}")
    print("scripts/bench.sh --render puts them on the page of the benchmark.")
    return 0


def say(text: str) -> None:
    if text and sys.stderr.isatty():
        print(f"\033[K{text}", file=sys.stderr, end="\r", flush=True)


def make(args: argparse.Namespace) -> int:
    import mlx.core as mx

    if args.device is not None:
        if not mx.is_available(getattr(mx, args.device)):
            print(f"error: this mlx has no {args.device}: leave --device out.", file=sys.stderr)
            return 1
        # mlx_lm makes its stream for the default device when it is imported.
        mx.set_default_device(getattr(mx, args.device))
    from mlx_lm.utils import load_config

    from conformance.__main__ import load
    from conformance.check.prompts import Unusable
    from conformance.report.measure import measured

    try:
        say(f"loading {args.model}")
        model, tokenizer = load(args.model)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    config: dict[str, Any] = {}
    if (folder := Path(path_of(args.model))).is_dir():
        config = load_config(folder)
    found = measured(args.model, model, tokenizer, config or vars(model.args), args.minutes, say)
    # A model may compute NaN or infinity, which JSON does not have.
    report = json.loads(json.dumps(found), parse_constant=lambda _: None)
    about = report["about"]
    name = re.sub(r"\W+", "-", f"report {about['model'].split('/')[-1]} {about['chip']} {about['device']}").lower()
    path = args.out / f"{name.strip('-')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(page(report), "utf-8")
    print(page(report))
    print(f"written: {path} and {path.with_suffix('.md').name}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    args = parsed(arguments)
    try:
        return merge(args) if args.merge else make(args)
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
