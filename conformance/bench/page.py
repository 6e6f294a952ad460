"""One HTML file with the whole sweep, to filter and to sort: no network, and readable on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from conformance.bench.report import NO_PARITY
from conformance.bench.results import CELLS, Results, chosen, different, mean, rows, values
from conformance.bench.strategies import AUTO

TEMPLATE = Path(__file__).with_name("page.html")
LABELS = ("stage", "model", "weights", "workload", "answer", "size", "strategy", "options", "state", "turn")
MORE_LABELS = ("task", "prompt_tokens", "batch", "kv", "device", "versions")
FIELDS = ("speed", "low", "high", "plain_tps", "tps", "prefill_tps", "plain_ttft", "ttft", "tokens")
MORE_FIELDS = ("tokens_per_forward", "fed_per_token", "acceptance", "ideal", "reached", "parity")
COLUMNS = (*LABELS[:7], *FIELDS[:3], *LABELS[7:], *FIELDS[3:], *MORE_FIELDS, *MORE_LABELS)
# What a row shows before all of it is asked for.
FEW = (*LABELS[1:4], *LABELS[6:8], *FIELDS[:3], "tps", *MORE_FIELDS[:2])


def shown(stage: str, row: dict[str, Any]) -> list[Any]:
    row = row | {"stage": stage, "versions": " ".join(f"{k} {v}" for k, v in row["versions"].items() if v != "none")}
    return [round(row[name], 4) if isinstance(row[name], float) else row[name] for name in COLUMNS]


def reported(reports: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The workloads of reports of other machines, as far as they have such cells."""
    for about, each in ((report["about"], each) for report in reports for each in report["speeds"]):
        yield dict.fromkeys(COLUMNS, "") | {
            **{"model": about["model"], "workload": each["workload"], "strategy": each["strategy"]},
            **{"weights": about["dtype"] if not about["bits"] else f"{about['bits']} bits"},
            **{"speed": each["speed"], "plain_tps": each["plain_tps"], "tokens": each["tokens"]},
            **{"tokens_per_forward": each["tokens_a_forward"], "parity": each["same"]},
            **{"device": f"{about['chip']}, {about['device']}, {about['system']}"},
            **{"versions": {"mlx": about["mlx"], "mlx-lm": about["mlx-lm"]}},
        }


def summary(runs: Sequence[Results]) -> str:
    """A line a workload: the default strategy in short contexts, on each model and device."""
    found = chosen(rows(runs, "workloads"), strategy=AUTO, size="short")
    most = max(values(found, "speed"), default=1.0)
    text = ""
    for model, weights, device in different(found, "model", "weights", "device"):
        here = chosen(found, model=model, weights=weights, device=device)
        lines = "".join(bar(name, chosen(here, workload=name), most) for (name,) in different(here, "workload"))
        text += f"<h2>{escape(f'{model}, {weights}, on {device}')}</h2><table class='summary'>"
        text += f"<tr><th>workload</th><th>speed</th><th></th><th>worst prompt</th></tr>{lines}</table>"
    return text or "<p>The workloads were not measured.</p>"


def bar(name: str, found: Sequence[dict[str, Any]], most: float) -> str:
    speeds = values(found, "speed")
    speed = mean(speeds) if all(row["parity"] for row in found) else None
    if speed is None:
        return f"<tr><th>{escape(name)}</th><td colspan='3'>{NO_PARITY}</td></tr>"
    drawn = f"<div class='bar' style='width:{100 * min(speed / most, 1):.0f}%'></div>"
    shown = f"<td class='n {'slow' if speed < 0.97 else 'fast' if speed > 1.03 else ''}'>{speed:.2f}</td>"
    return f"<tr><th>{escape(name)}</th>{shown}<td class='bars'>{drawn}</td><td class='n'>{min(speeds):.2f}</td></tr>"


def page(runs: Sequence[Results], reports: Sequence[dict[str, Any]] = ()) -> str:
    cells = [(stage, row) for stage in CELLS for row in rows(runs, stage)]
    cells += [("report", row) for row in reported(reports)]
    data = {"columns": COLUMNS, "few": FEW, "labels": LABELS, "rows": [shown(stage, row) for stage, row in cells]}
    # Nothing in the data may end the script that holds it.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text().replace("<!-- SUMMARY -->", summary(runs)).replace("/*DATA*/null", text)
