"""Draw the pictures from the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from conformance.bench.costs import PREFIX
from conformance.bench.results import Results, cells
from conformance.bench.tables import grouped

plt.rcParams |= {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
SPEED = "times the speed of plain decoding"
# The colors of a bar.
FASTER, SLOWER = "tab:blue", "tab:red"


def main_model(results: Results) -> pd.DataFrame:
    """The cells of the model and the device of the first run that have a speed."""
    found = cells(results, "workloads").dropna(subset="speed")
    return found[(found.model == found.model.iloc[0]) & (found.device == found.device.iloc[0])]


def speed_up(results: Results) -> Figure:
    """A bar for each workload with the default strategy, the first that is measured, from plain decoding on."""
    found = main_model(results)
    found = found[found.strategy == found.strategy.iloc[0]]
    bars = grouped(found, "workload").sort_values("speed")
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.24 * len(bars)))
    spread = [bars.speed - bars.low, bars.high - bars.speed]
    colors = [FASTER if speed >= 1 else SLOWER for speed in bars.speed]
    axes.barh(bars.workload, bars.speed - 1, 0.7, left=1, color=colors, xerr=spread, error_kw={"lw": 0.6, "alpha": 0.6})
    axes.axvline(1, color="black", lw=1)
    axes.set(xlabel=SPEED, ymargin=0.01)
    axes.set_title("Speed with the default drafts, by workload; the line is the slowest and fastest run", fontsize=10)
    return figure


def block_cost(results: Results) -> Figure:
    """A line for each model and context."""
    found = results["blocks"].set_index(["model", "weights", "context"])
    wide = found.filter(like=PREFIX).rename(columns=lambda name: int(name.removeprefix(PREFIX))).T
    wide.columns = [f"{model}, {weights}, {context} tokens" for model, weights, context in wide.columns]
    axes = wide.plot(marker="o", ms=4, lw=1, figsize=(7, 4.5))
    axes.plot(wide.index, wide.index, "k:", lw=1, label="as dear as single tokens")
    axes.set(xlabel="tokens in a block", ylabel="cost in forward passes of one token")
    axes.legend(frameon=False, fontsize=8)
    return axes.figure


# The stage that each picture shows, and what draws it.
PICTURES = {
    "speed-up": ("workloads", speed_up),
    "block-cost": ("blocks", block_cost),
}


def draw(results: Results, folder: Path) -> Iterator[Path]:
    """Write the pictures of what was measured."""
    for name, (stage, make) in PICTURES.items():
        if stage in results:
            figure, path = make(results), folder / f"{name}.png"
            figure.savefig(path, dpi=120, metadata={"Software": None}, facecolor="white")
            plt.close(figure)
            yield path
