"""Read, write and merge the file of results: runs with their labels, also of other machines."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conformance.bench import limit
from conformance.bench.cells import Row
from conformance.bench.plan import Plan
from conformance.testing.device import device

Results = dict[str, Any]
# The stages that compare drafted with plain decoding on each prompt.
CELLS = ("workloads", "types", "sweep", "memory")
PACKAGES = ("mlx-lm", "mlx", "transformers", "numpy")


def meta(plan: Plan, model: str) -> dict[str, Any]:
    """The labels that all rows of a run share."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name) or "a source tree"
        except PackageNotFoundError:
            versions[name] = "none"
    return {"model": model, "device": device(), "versions": versions, "plan": vars(plan)}


def load(path: Path) -> list[Results]:
    return list(json.loads(path.read_text())["runs"]) if path.exists() else []


def save(path: Path, runs: Sequence[Results]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"runs": runs}, indent=1, default=str) + "\n")


def key(run: Results) -> tuple[str, str]:
    return run["meta"]["model"], run["meta"]["device"]


def merged(runs: Iterable[Results], more: Iterable[Results]) -> list[Results]:
    """Merge runs. Each stage replaces the same stage of an earlier run of the same model on the same device."""
    found = {key(run): run for run in runs}
    for run in more:
        found[key(run)] = found.get(key(run), {}) | run
    return list(found.values())


def rows(runs: Iterable[Results], stage: str) -> list[Row]:
    """The rows of one stage of all runs, each with all its labels."""
    found = [
        {"device": run["meta"]["device"], "versions": run["meta"]["versions"]} | row
        for run in runs
        for row in run.get(stage, [])
    ]
    return limit.pooled(found) if stage in CELLS else found


def chosen(rows: Iterable[Row], **labels: Any) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in labels.items())]


def values(rows: Iterable[Row], name: str) -> list[float]:
    """The measured values. A cell without parity has no speed."""
    return [row[name] for row in rows if row.get(name) is not None]


def mean(found: Sequence[float]) -> float | None:
    """The geometric mean, as the values are ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in found)) if found else None


def different(rows: Iterable[Row], *names: str) -> list[tuple[Any, ...]]:
    """The combinations of labels that occur, in order."""
    return list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))
