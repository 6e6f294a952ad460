"""The Markdown tables, made from the results and put between markers in the documents, and the picture beside them.

A document holds ``<!-- bench NAME -->`` and ``<!-- end NAME -->``; what is between them is the table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from conformance import ROOT
from conformance.tables import number, table

DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "use.md")
MARKED = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
NO_PARITY = "no parity"
# The rows of each stage, by the name of its file.
Results = dict[str, pd.DataFrame]


def load(folder: Path) -> Results:
    return {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def mean(speeds: pd.Series) -> Any:
    """The mean of some cells, unless one of them has no parity and so no speed."""
    return geometric_mean(speeds) if speeds.notna().all() else None


def shown(frame: pd.DataFrame, **heads: str) -> str:
    """A table of all columns, some under other names. Rows have a spread in place of their least and largest ratio."""
    if "low" in frame:
        frame["low"] = [f"{number(low)} to {number(high)}" for low, high in zip(frame.low, frame.high, strict=True)]
        frame["speed"] = frame.speed.astype(object).where(frame.speed.notna(), NO_PARITY)
        frame, heads = frame.drop(columns="high"), {"low": "spread", **heads}
    rows = frame.astype(object).itertuples(index=False)
    return table([heads.get(name, name) for name in frame], rows) + "\n"


def grouped(found: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The cells that share these labels as one row: means, and the worst prompt."""
    each = found.groupby(list(names), sort=False)
    return each.agg(
        prompts=("speed", "size"),
        speed=("speed", mean),
        low=("low", "min"),
        high=("high", "max"),
        worst=("speed", "min"),
        tokens_per_forward=("tokens_per_forward", "mean"),
        acceptance=("acceptance", "mean"),
    ).reset_index()


def subjects(results: Results) -> str:
    """What was measured where, and how many cells have parity."""
    parity = results["workloads"].parity
    runs = results["subjects"].assign(cells=f"{parity.sum()} of {len(parity)}")
    heads = {"prompts": "prompts a workload", "tokens": "tokens at most", "cells": "cells with parity"}
    return shown(runs, **heads)


def workloads(results: Results) -> str:
    """Each class and context, all turns and kinds of answers together."""
    heads = {"size": "context", "worst": "worst prompt", "tokens_per_forward": "tokens a forward"}
    return shown(grouped(results["workloads"], "workload", "size"), **heads, acceptance="accepted")


def serving(results: Results) -> str:
    names = ["requests", "clients", "plain", "speed", "low", "high", "tokens_per_forward"]
    return shown(results["serving"][names].copy(), tokens_per_forward="tokens a forward")


# The stage that each table shows, and what makes the table.
TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "subjects": ("workloads", subjects),
    "workloads": ("workloads", workloads),
    "costs": ("blocks", lambda results: shown(results["blocks"])),
    "serving": ("serving", serving),
}


def filled(text: str, results: Results) -> str:
    """A document with the tables of these results between its markers."""

    def made(found: re.Match[str]) -> str:
        stage, make = TABLES[found[2]]
        return f"{found[1]}{make(results)}{found[3]}" if stage in results else found[0]

    return MARKED.sub(made, text)


def draw(results: Results, folder: Path) -> None:
    """The picture: a bar for each workload that has a speed, from plain decoding on."""
    bars = grouped(results["workloads"].dropna(subset="speed"), "workload").sort_values("speed")
    with mpl.rc_context({"axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}):
        # Narrow, so that the words are large enough on a phone.
        figure = Figure(figsize=(4.2, 0.9 + 0.26 * len(bars)), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        spread, colors = [bars.speed - bars.low, bars.high - bars.speed], ["tab:red", "tab:blue"]
        thin = {"lw": 0.6, "alpha": 0.6}
        color = [colors[speed >= 1] for speed in bars.speed]
        axes.barh(bars.workload, bars.speed - 1, 0.7, left=1, color=color, xerr=spread, error_kw=thin)
        axes.axvline(1, color="black", lw=1)
        axes.set(xlabel="times the speed of plain decoding", ymargin=0.01)
        figure.savefig(folder / "speed-up.png", dpi=160, metadata={"Software": None}, facecolor="white")
