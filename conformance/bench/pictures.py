"""Draw the pictures, as PNG and SVG, from the results. A picture leaves out results that are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from conformance.bench.cells import Row
from conformance.bench.results import Results, chosen, different, mean, rows, values

# The same results give the same bytes.
plt.rcParams |= {"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}
plt.rcParams |= {"axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False}
MARKERS = "osD^vPX*"
# The colors of a bar.
FASTER, SLOWER = "tab:blue", "tab:red"


def main_model(runs: Sequence[Results]) -> list[Row]:
    """The cells of the model of the first run."""
    return rows(runs[:1], "workloads")


def labelled(row: Row) -> str:
    parts = [row["workload"]]
    if row["size"] != "short":
        parts.append(row["size"])
    if row["answer"] == "given":
        parts.append("(given)")
    return " ".join(parts)


def speed_up(runs: Sequence[Results]) -> Figure:
    """A bar for each workload with the default strategy, the first that is measured, from plain decoding on."""
    found = main_model(runs)
    default = next((name for (name,) in different(found, "strategy")), "")
    bars = []
    for name in dict.fromkeys(labelled(row) for row in found):
        some = [row for row in found if labelled(row) == name and row["strategy"] == default]
        middle = mean(values(some, "speed"))
        if middle is not None and all(row["parity"] for row in some):
            bars.append((middle, name, min(values(some, "low")), max(values(some, "high"))))
    bars.sort(reverse=True)
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.24 * len(bars)), layout="constrained")
    for place, (middle, _, low, high) in enumerate(bars):
        error = [[max(middle - low, 0)], [max(high - middle, 0)]]
        axes.barh(place, middle - 1, 0.7, left=1, color=FASTER if middle >= 1 else SLOWER)
        axes.errorbar(middle, place, xerr=error, color="black", lw=0.6, alpha=0.6)
    axes.axvline(1, color="black", lw=1)
    names = [name for _, name, _, _ in bars]
    axes.set(yticks=range(len(bars)), yticklabels=names, xlabel="times the speed of plain decoding")
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_title(f"{subtitle(found)}, {default}", fontsize=10)
    return figure


def subtitle(found: Sequence[Row]) -> str:
    return f"{found[0]['model']}, {found[0]['weights']}, batch 1" if found else ""


def acceptance(runs: Sequence[Results]) -> Figure:
    """A point for each cell. It shows that the share of accepted tokens alone does not decide the speed."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    found = [row for row in main_model(runs) if row["speed"] is not None and row["acceptance"] is not None]
    for marker, (strategy,) in zip(MARKERS, different(found, "strategy"), strict=False):
        some = chosen(found, strategy=strategy)
        axes.plot(values(some, "acceptance"), values(some, "speed"), marker, label=strategy, alpha=0.7)
    axes.axhline(1, color="black", lw=1)
    axes.set(xlabel="share of drafted tokens that were accepted", ylabel="times the speed of plain decoding")
    axes.set_title(subtitle(found), fontsize=10)
    axes.legend(frameon=False)
    return figure


def block_cost(runs: Sequence[Results]) -> Figure:
    """A line for each model and context."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for marker, row in zip(MARKERS * 4, rows(runs, "blocks"), strict=False):
        lengths = [int(length) for length in row["costs"]]
        label = f"{row['model']}, {row['weights']}, {row['context']} tokens"
        axes.plot(lengths, list(row["costs"].values()), marker=marker, ms=4, lw=1, label=label)
    longest = max((int(n) for row in rows(runs, "blocks") for n in row["costs"]), default=2)
    axes.plot([1, longest], [1, longest], "k:", lw=1, label="as dear as single tokens")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="tokens in a block", ylabel="cost in forward passes of one token")
    axes.legend(frameon=False, fontsize=8)
    return figure


def position(runs: Sequence[Results]) -> Figure:
    """The share of drafted tokens that are accepted at each place of a draft."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    found = main_model(runs)
    for marker, (strategy,) in zip(MARKERS, different(found, "strategy"), strict=False):
        accepted, drafted = summed(chosen(found, strategy=strategy))
        shares = [a / b for a, b in zip(accepted, drafted, strict=True)]
        axes.plot(range(1, len(shares) + 1), shares, marker=marker, ms=4, lw=1, label=strategy)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="place in the draft", ylabel="accepted of those drafted there", ylim=(0, 1.03))
    axes.set_title(subtitle(found), fontsize=10)
    axes.legend(frameon=False)
    return figure


def summed(found: Sequence[Row]) -> tuple[list[int], list[int]]:
    longest = max((len(row["positions"]) for row in found), default=0)
    sums: Any = [
        [sum(row["positions"][i][part] for row in found if i < len(row["positions"])) for i in range(longest)]
        for part in (0, 1)
    ]
    return sums[0], sums[1]


PICTURES = {"speed-up": speed_up, "acceptance": acceptance, "block-cost": block_cost, "position": position}


def draw(runs: Sequence[Results], folder: Path) -> Iterator[Path]:
    """Write all pictures. Without a run there are none."""
    for name, make in PICTURES.items() if runs else ():
        figure = make(runs)
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=120, metadata=metadata, facecolor="white")
            yield path
        plt.close(figure)
