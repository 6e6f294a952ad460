"""One HTML file with the whole sweep, to filter and to sort: no network, and readable on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.bench.results import CELLS, Run, rows

TEMPLATE = Path(__file__).with_name("page.html")
LABELS = ("stage", "model", "weights", "workload", "answer", "size", "strategy", "options", "state", "turn")
MORE_LABELS = ("task", "prompt_tokens", "batch", "kv", "device", "versions")
FIELDS = ("speed", "low", "high", "plain_tps", "tps", "prefill_tps", "plain_ttft", "ttft", "tokens")
MORE_FIELDS = ("tokens_per_forward", "fed_per_token", "acceptance", "ideal", "reached", "parity")
COLUMNS = (*LABELS[:7], *FIELDS[:3], *LABELS[7:], *FIELDS[3:], *MORE_FIELDS, *MORE_LABELS)


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


def page(runs: Sequence[Run], reports: Sequence[dict[str, Any]] = ()) -> str:
    cells = [(stage, row) for stage in CELLS for row in rows(runs, stage)]
    cells += [("report", row) for row in reported(reports)]
    data = {"columns": COLUMNS, "labels": LABELS, "rows": [shown(stage, row) for stage, row in cells]}
    # Nothing in the data may end the script that holds it.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text().replace("/*DATA*/null", text)
