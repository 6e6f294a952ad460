"""The table of reports, also of other machines. A file may be damaged, or may not be a report at all.

This needs no mlx: reports are put into the table anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from conformance import ROOT
from conformance.testing.tables import table

# Goes up whenever the content of a report changes.
FORMAT = 3
DOCS = ROOT / "docs"
KEPT, DOCUMENT = Path("benchmarks", "reports.json"), Path("benchmarks.md")
VERDICTS = {0: "exact", 1: "near ties", 2: "FAULT"}
# The blocks and the batch whose costs are columns.
LENGTHS, BATCH = (2, 4, 8, 16), {"rows": 4, "length": 4}
KEY = ("chip", "model", "weights", "mlx")
COLUMNS = (*KEY, "plain tok/s", "speed", "worst", "same text", "check", *(f"block of {n}" for n in LENGTHS))
COLUMNS += (f"{BATCH['rows']} rows of {BATCH['length']}", "made")
MARKS = re.compile(r"(<!-- reports -->\n).*?(<!-- end reports -->)", re.DOTALL)


class Unreadable(Exception):
    """The file is no report. The message says why, and what to do."""


def text(value: Any) -> str:
    """Text of another person's file, without what means something in a table."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text"[:60])
    return re.sub(r"[^\w .,:;()/+*=-]", "", value)[:60] or "—"


def number(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError(f"{value} is no number")
    return float(value)


def line_of(report: dict[str, Any]) -> dict[str, Any]:
    """The line of a report in the table, by the names of the columns. Speeds are means over its workloads."""
    about, each = report["about"], report["speeds"]
    speeds, plain = ([number(one[name]) for one in each] for name in ("speed", "plain_tps"))
    check, probe = report["check"], report["probe"]
    costs = {one["length"]: number(one["cost"]) for one in probe["rows"]} if probe is not None else {}
    batch = [number(one["cost"]) for one in report["batch"] if BATCH.items() <= one.items()]
    found = (
        f"{text(about['chip'])}, {text(about['device'])}",
        *(text(about[name]) for name in KEY[1:]),
        *(geometric_mean(values) if values else None for values in (plain, speeds)),
        min(speeds, default=None),
        f"{sum(one['same'] is True for one in each)} of {len(each)}",
        "not asked" if check is None else VERDICTS[check["exit"]],
        *(costs.get(length) for length in LENGTHS),
        next(iter(batch), None),
        text(about["made"]),
    )
    return dict(zip(COLUMNS, found, strict=True))


def read(path: Path) -> dict[str, Any]:
    """The line of the report in a file."""
    try:
        found = json.loads(path.read_bytes().decode("utf-8"), parse_constant=number)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is damaged: it is no JSON ({error}).") from error
    if not isinstance(found, dict) or type(found.get("format")) is not int or "about" not in found:
        raise Unreadable(f"{path} is no report of scripts/report.sh.")
    if found["format"] != FORMAT:
        age = "an older" if found["format"] < FORMAT else "a newer"
        raise Unreadable(
            f"{path} was made by {age} scripts/report.sh (format {found['format']}, this is {FORMAT}): "
            "run the same one on both machines."
        )
    try:
        return line_of(found)
    except KeyError as error:
        raise Unreadable(f"{path} is damaged: it lacks {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{path} is damaged: {error}.") from error


def merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last report of each model on each chip and mlx, in this order."""
    by_key = {tuple(each[name] for name in KEY): each for each in before + new}
    return [by_key[key] for key in sorted(by_key)]


def by_chip(lines: list[dict[str, Any]]) -> str:
    return table(COLUMNS, (line.values() for line in lines))


def merge(args: argparse.Namespace) -> int:
    """Put reports into the table. If one file is no report, nothing is written."""
    kept, document = args.docs / KEPT, args.docs / DOCUMENT
    try:
        new = [read(path) for path in args.files]
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    lines = merged(json.loads(kept.read_text("utf-8")) if kept.exists() else [], new)
    kept.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")
    filled = MARKS.sub(lambda found: f"{found[1]}{by_chip(lines)}\n{found[2]}", document.read_text("utf-8"))
    document.write_text(filled, "utf-8")
    print(f"{len(new)} of {len(lines)} reports are new or newer: {kept}, {document}")
    return 0


def page(report: dict[str, Any]) -> str:
    """A report as Markdown."""
    return "\n".join(sections(report)) + "\n"


def sections(report: dict[str, Any]) -> Iterator[str]:
    about, line = report["about"], line_of(report)
    yield f"# {line['model']} on {line['chip']}\n"
    yield from (f"{name} {about[name]}" for name in ("system", "mlx", "mlx-lm", "python", "made"))
    yield f"weights {line['weights']}, {about['weights_gb']} GB\n\ncheck: {line['check']}\n"
    yield table(COLUMNS[len(KEY) : -1], [list(line.values())[len(KEY) : -1]])
    names = ("workload", "tokens", "plain_tps", "speed", "tokens_a_forward")
    rows: list[list[Any]] = [
        [*(each[name] for name in names), "yes" if each["same"] else "NO"] for each in report["speeds"]
    ]
    yield "\n" + table(["workload", "tokens", "plain tok/s", "speed", "tokens a forward", "same text"], rows)
    if report["probe"] is not None:
        yield "\nWhat a block costs, in passes of one token, and how far its log probabilities are off:\n"
        found = report["probe"]["rows"]
        noises = ("no number" if row["noise"] is None else f"{row['noise']:.1e}" for row in found)
        rows = [[row["length"], row["cost"], noise] for row, noise in zip(found, noises, strict=True)]
        yield table(["block", "cost", "noise"], rows)
    if report["batch"]:
        lengths = sorted({each["length"] for each in report["batch"]})
        costs = {(each["rows"], each["length"]): each["cost"] for each in report["batch"]}
        rows = [[n, *(costs.get((n, length)) for length in lengths)] for n in sorted({n for n, _ in costs})]
        yield "\nWhat a pass of several rows costs, in passes of one token of one row:\n"
        yield table(["rows", *(f"blocks of {length}" for length in lengths)], rows)
    if report["left_out"]:
        yield f"\nLeft out: {', '.join(report['left_out'])}."
