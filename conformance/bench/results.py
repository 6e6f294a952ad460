"""The files of results: one CSV a stage, with the runs of all models and devices."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from conformance.bench.cells import Row
from conformance.bench.costs import PREFIX, ideal
from conformance.bench.plan import Plan
from conformance.testing.device import device

# The stages that compare drafted with plain decoding on each prompt.
CELLS = ("workloads", "types")
RUN = ["model", "device"]
PACKAGES = ("mlx-lm", "mlx", "transformers", "numpy")
Results = dict[str, pd.DataFrame]


def versions() -> str:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name) or "a source tree"
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {value}" for name, value in found.items())


def about(plan: Plan) -> Row:
    """The row of a run in the stage "subjects"."""
    return {"versions": versions(), "prompts": plan.prompts, "repetitions": plan.repeats, "tokens": plan.tokens}


def load(folder: Path) -> Results:
    return {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def add(folder: Path, stage: str, new: pd.DataFrame) -> None:
    """Write a stage. Its rows replace those of an earlier run of the same model on the same device."""
    path = folder / f"{stage}.csv"
    if path.exists():
        old = pd.read_csv(path)
        again = old.set_index(RUN).index.isin(new.set_index(RUN).index)
        new = pd.concat([old[~again], new]) if not again.all() else new
    new.to_csv(path, index=False, float_format="%.6g")


def measured(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows of a stage, with the device."""
    return pd.DataFrame([{"device": device()} | row for row in rows])


def cells(results: Results, stage: str) -> pd.DataFrame:
    """The rows of a stage with the ideal speed, at the costs of blocks after the context next to the prompt's."""
    if stage not in results:
        return pd.DataFrame()
    found, costs = results[stage].copy(), results.get("blocks")
    known = {} if costs is None else dict(list(costs.groupby([*RUN, "weights"])))
    found["ideal"] = [of_row(row, known.get((row.model, row.device, row.weights))) for row in found.itertuples()]
    found["reached"] = found.speed / found.ideal
    return found


def of_row(row: Any, costs: pd.DataFrame | None) -> float:
    if costs is None:
        return math.nan
    nearest = costs.iloc[(costs.context - row.prompt_tokens).abs().argmin()]
    prices = nearest[nearest.index.str.startswith(PREFIX)].dropna()
    blocks = {int(n): int(count) for n, _, count in (pair.partition(":") for pair in row.blocks.split())}
    return ideal(row.decoded, blocks, {int(name.removeprefix(PREFIX)): cost for name, cost in prices.items()})
