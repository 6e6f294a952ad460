"""Draw the picture of docs/benchmarks.md from the results."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from conformance.lab.bench.tables import Results, grouped

STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False}
# The colors of a bar.
FASTER, SLOWER = "tab:blue", "tab:red"


def speed_up(results: Results) -> Figure:
    """A bar for each workload that has a speed, from plain decoding on."""
    bars = grouped(results["workloads"].dropna(subset="speed"), "workload").sort_values("speed")
    # Narrow, so that the words are large enough on a phone.
    figure = Figure(figsize=(4.2, 0.9 + 0.26 * len(bars)), layout="constrained")
    axes = figure.subplots()
    spread = [bars.speed - bars.low, bars.high - bars.speed]
    colors = [FASTER if speed >= 1 else SLOWER for speed in bars.speed]
    axes.barh(bars.workload, bars.speed - 1, 0.7, left=1, color=colors, xerr=spread, error_kw={"lw": 0.6, "alpha": 0.6})
    axes.axvline(1, color="black", lw=1)
    axes.set(xlabel="times the speed of plain decoding", ymargin=0.01)
    return figure


def draw(results: Results, folder: Path) -> None:
    if "workloads" in results:
        with mpl.rc_context(STYLE):
            figure = speed_up(results)
            figure.savefig(folder / "speed-up.png", dpi=160, metadata={"Software": None}, facecolor="white")
