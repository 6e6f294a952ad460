"""Write one report as a page, and many reports as a table by chip."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

Report = dict[str, Any]
VERDICTS = {0: "exact", 1: "near ties", 2: "FAULT"}
SHOWN = (2, 4, 8, 16)
MARKS = re.compile(r"(<!-- reports -->\n).*?(<!-- end reports -->)", re.DOTALL)


def cell(text: Any) -> str:
    """Escape text of another person's file for a table."""
    return re.sub(r"[^\w .,:;()/+*=-]", "", str(text))[:60] or "—"


def table(rows: list[list[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def shown(value: float, digits: int = 2) -> str:
    return "—" if math.isnan(value) else f"{value:.{digits}f}"


def verdict(report: Report) -> str:
    return "not asked" if report["check"] is None else VERDICTS.get(report["check"]["exit"], "unknown")


def weights(about: dict[str, Any]) -> str:
    return f"{about['bits']} bits" if about["bits"] else cell(about["dtype"])


def of_speeds(report: Report) -> tuple[float, float, float, str]:
    """Plain tokens a second, the mean speed, the worst speed, and how many texts are the same."""
    found = [each for each in report["speeds"] if each["speed"] > 0 and each["plain_tps"] > 0]
    speeds = [each["speed"] for each in found]
    same = f"{sum(each['same'] for each in report['speeds'])} of {len(report['speeds'])}"
    return mean([each["plain_tps"] for each in found]), mean(speeds), min(speeds, default=math.nan), same


def costs(report: Report) -> Iterator[str]:
    known = {row["length"]: row["cost"] for row in (report["probe"] or {"rows": []})["rows"]}
    yield from (shown(known.get(length, math.nan)) for length in SHOWN)


def of_batch(report: Report, rows: int, length: int) -> float:
    found = {(each["rows"], each["length"]): each["cost"] for each in report["batch"]}
    return float(found.get((rows, length), math.nan))


def by_chip(reports: list[Report]) -> str:
    """A table with one line for each report."""
    head = "chip|model|weights|mlx|plain tok/s|speed|worst|same text|check".split("|")
    rows = [[*head, *(f"block of {length}" for length in SHOWN), "4 rows of 4"]]
    for report in reports:
        about = report["about"]
        plain, speed, worst, same = of_speeds(report)
        who = [
            f"{cell(about['chip'])}, {cell(about['device'])}",
            cell(about["model"]),
            weights(about),
            cell(about["mlx"]),
        ]
        found = [shown(plain, 1), shown(speed), shown(worst), same, verdict(report)]
        rows.append([*who, *found, *costs(report), shown(of_batch(report, 4, 4))])
    return table(rows)


def filled(document: str, reports: list[Report]) -> str:
    """A document with the table between its two marks."""
    return MARKS.sub(lambda found: f"{found[1]}{by_chip(reports)}\n{found[2]}", document)


def page(report: Report) -> str:
    """A report as Markdown."""
    about = report["about"]
    lines = [f"# {cell(about['model'])} on {cell(about['chip'])}, {cell(about['device'])}", ""]
    lines += [f"{name} {cell(about[name])}" for name in ("system", "mlx", "mlx-lm", "python", "made")]
    plain, speed, worst, same = of_speeds(report)
    lines += [f"weights {weights(about)}, {about['weights_gb']} GB", "", f"check: {verdict(report)}", ""]
    lines += [f"Plain decoding {shown(plain, 1)} tokens a second. With the default drafter {shown(speed)} times that, "]
    lines[-1] += f"at worst {shown(worst)}; {same} texts are the same."
    rows = [["workload", "tokens", "plain tok/s", "speed", "tokens a forward", "same text"]]
    for each in report["speeds"]:
        numbers = [shown(each["plain_tps"], 1), shown(each["speed"]), shown(each["tokens_a_forward"])]
        rows.append([cell(each["workload"]), str(each["tokens"]), *numbers, "yes" if each["same"] else "NO"])
    lines += ["", table(rows)]
    if report["probe"] is not None:
        rows = [["block", "cost", "noise"]]
        for row in report["probe"]["rows"]:
            noise = "no number" if row["noise"] is None else f"{row['noise']:.1e}"
            rows.append([str(row["length"]), shown(row["cost"]), noise])
        lines += ["", "What a block costs, in passes of one token, and how far its log probabilities are off:", ""]
        lines.append(table(rows))
    if report["batch"]:
        lengths = sorted({each["length"] for each in report["batch"]})
        rows = [["rows", *(f"blocks of {length}" for length in lengths)]]
        for n in sorted({each["rows"] for each in report["batch"]}):
            rows.append([str(n), *(shown(of_batch(report, n, length)) for length in lengths)])
        lines += ["", "What a pass of several rows costs, in passes of one token of one row:", "", table(rows)]
    if report["left_out"]:
        lines += ["", f"Left out: {', '.join(map(cell, report['left_out']))}."]
    return "\n".join(lines) + "\n"
