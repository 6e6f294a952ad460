"""A report as a page, whose last line fits the table of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

from conformance.tables import line, table

VERDICTS = {0: "exact", 1: "near ties", 2: "FAULT"}
# The blocks and the batch whose costs are columns.
LENGTHS, BATCH = (2, 4, 8, 16), (4, 4)
KEY = ("chip", "model", "weights", "mlx")
COLUMNS = (*KEY, "plain tok/s", "speed", "worst", "same text", "check", *(f"block of {n}" for n in LENGTHS))
COLUMNS += (f"{BATCH[0]} rows of {BATCH[1]}", "made")


def mean(values: list[float]) -> float | None:
    return geometric_mean(values) if values else None


def line_of(report: dict[str, Any]) -> list[Any]:
    """The cells of a report in the table. Speeds are means over the workloads that have the same text."""
    about, each, check = report["about"], report["speeds"], report["check"]
    speeds = [one["speed"] for one in each if one["parity"]]
    costs = {one["length"]: one["cost"] for one in report["probe"]["rows"]} if report["probe"] else {}
    batch = {(one["rows"], one["length"]): one["cost"] for one in report["batch"]}
    return [
        f"{about['chip']}, {about['device']}",
        *(about[name] for name in KEY[1:]),
        *(mean([one["plain_tps"] for one in each]), mean(speeds), min(speeds, default=None)),
        f"{len(speeds)} of {len(each)}",
        "not asked" if check is None else VERDICTS[check["exit"]],
        *(costs.get(length) for length in LENGTHS),
        batch.get(BATCH),
        about["made"],
    ]


def page(report: dict[str, Any]) -> str:
    """A report as Markdown."""
    return "\n".join(sections(report)) + "\n"


def sections(report: dict[str, Any]) -> Iterator[str]:
    about, cells = report["about"], line_of(report)
    yield f"# {about['model']} on {cells[0]}\n"
    yield from (f"{name} {about[name]}" for name in ("system", "mlx", "mlx-lm", "python", "made", "weights"))
    yield f"{about['weights_gb']} GB\n"
    heads = {"tokens": "tokens", "plain_tps": "plain tok/s", "speed": "speed", "tokens_per_forward": "tokens a forward"}
    rows = [[one["workload"], *map(one.get, heads), "yes" if one["parity"] else "NO"] for one in report["speeds"]]
    yield table(["workload", *heads.values(), "same text"], rows)
    if report["probe"]:
        yield "\nWhat a block costs, in passes of one token, and how far its log probabilities are off:\n"
        found = report["probe"]["rows"]
        noises = ["no number" if row["noise"] is None else f"{row['noise']:.1e}" for row in found]
        rows = [[row["length"], row["cost"], noise] for row, noise in zip(found, noises, strict=True)]
        yield table(["block", "cost", "noise"], rows)
    if report["batch"]:
        yield "\nWhat a pass of several rows costs, in passes of one token of one row:\n"
        yield table(["rows", "block", "cost"], ([one["rows"], one["length"], one["cost"]] for one in report["batch"]))
    if report["left_out"]:
        yield f"\nLeft out: {', '.join(report['left_out'])}."
    yield f"\nThe line for the table of docs/benchmarks.md:\n\n{table(COLUMNS)}\n{line(cells)}"
