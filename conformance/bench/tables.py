"""The Markdown tables, made from the results and put between markers in the documents.

A document holds ``<!-- bench NAME -->`` and ``<!-- end NAME -->``; what is between them is the table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd

from conformance import ROOT
from conformance.bench.costs import PREFIX
from conformance.bench.results import CELLS, RUN, Results, cells
from conformance.bench.strategies import AUTO
from conformance.testing.tables import number, table

DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "use.md")
MARKED = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
NO_PARITY, NOTHING = "no parity", "Not measured yet.\n"


def mean(speeds: pd.Series) -> Any:
    """The mean of some cells, unless one of them has no parity and so no speed."""
    return geometric_mean(speeds) if speeds.notna().all() else NO_PARITY


def spread(low: float, high: float) -> str:
    """From the least to the largest ratio of all pairs."""
    return f"{number(low)} to {number(high)}"


def shown(frame: pd.DataFrame, **names: str) -> str:
    """A table of some columns under other names. Rows have a spread in place of their least and largest ratio."""
    if "low" in frame:
        frame = frame.assign(spread=list(map(spread, frame.low, frame.high)))
    if "speed" in frame:
        frame = frame.assign(speed=frame.speed.fillna(NO_PARITY).astype(object))
    return table(names.values(), frame[list(names)].astype(object).itertuples(index=False)) + "\n"


def grouped(found: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The cells that share these labels as one row: means of speeds, and the worst."""
    each = found.groupby(list(names), sort=False)
    return each.agg(
        prompts=("speed", "size"),
        speed=("speed", mean),
        low=("low", "min"),
        high=("high", "max"),
        worst=("speed", "min"),
        tokens_per_forward=("tokens_per_forward", "mean"),
        acceptance=("acceptance", "mean"),
        ideal=("ideal", mean),
        reached=("reached", mean),
    ).reset_index()


def subjects(results: Results) -> str:
    """What was measured where, and how many cells have parity."""
    found = pd.concat([results[name] for name in CELLS if name in results])
    counts = found.groupby(RUN).parity.agg(lambda parity: f"{parity.sum()} of {len(parity)}")
    runs = results["subjects"].join(counts.rename("cells"), on=RUN)
    names = {name: name for name in (*RUN, "versions", "prompts", "repetitions", "tokens", "cells")}
    heads = {"prompts": "prompts a workload", "tokens": "tokens at most", "cells": "cells with parity"}
    return shown(runs, **(names | heads))


def workloads(results: Results) -> str:
    """The default strategy on each class and context, all turns and kinds of answers together."""
    found = cells(results, "workloads")
    found = grouped(found[found.strategy == AUTO], "model", "weights", "workload", "size")
    names = {name: name for name in ("model", "weights", "workload", "size", "prompts", "speed", "spread")}
    heads = {"size": "context", "worst": "worst prompt", "tokens_per_forward": "tokens a forward"}
    return shown(found, **(names | heads | {"acceptance": "accepted", "ideal": "ideal", "reached": "reached"}))


def strategies(results: Results) -> str:
    """All strategies, on the prompts that more than the default had."""
    found, labels = cells(results, "workloads"), ["device", "model", "task", "answer", "size"]
    several = found.groupby(labels).strategy.transform("nunique") > 1
    found = found[several].assign(speed=lambda rows: rows.speed.map(number).where(rows.parity, NO_PARITY))
    wide = found.set_index([*labels, "strategy"]).speed.unstack(sort=False)
    names = {name: name for name in ("model", *labels[2:], *wide)}
    return shown(wide.fillna("—").reset_index(), **(names | {"task": "prompt", "size": "context"}))


def types(results: Results) -> str:
    names = {name: name for name in ("weights", "task", "answer", "speed", "spread", "plain_tps", "ideal")}
    return shown(cells(results, "types"), **(names | {"task": "prompt", "plain_tps": "plain tokens/s"}))


def costs(results: Results) -> str:
    found = results["blocks"]
    blocks = [name for name in found if name.startswith(PREFIX)]
    names = ["model", "weights", "context", "ms a token", *blocks, "MiB of cache"]
    return shown(found, **{name: name for name in names})


def serving(results: Results) -> str:
    names = {name: name for name in ("model", "requests", "clients", "plain", "speed", "spread")}
    return shown(results["serving"], **names, tokens_per_forward="tokens a forward")


# The stage that each table shows, and what makes the table.
TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "subjects": ("workloads", subjects),
    "workloads": ("workloads", workloads),
    "strategies": ("workloads", strategies),
    "costs": ("blocks", costs),
    "types": ("types", types),
    "serving": ("serving", serving),
}


def made(name: str, results: Results) -> str:
    stage, make = TABLES[name]
    return make(results) if stage in results else NOTHING


def filled(text: str, results: Results) -> str:
    """A document with the tables of these results between its markers."""
    return MARKED.sub(lambda found: found[1] + made(found[2], results) + found[3], text)


def stale(documents: Sequence[Path], results: Results) -> list[Path]:
    """The documents whose tables are not those of the results."""
    return [path for path in documents if filled(path.read_text(), results) != path.read_text()]


def write(documents: Sequence[Path], results: Results) -> None:
    for path in documents:
        path.write_text(filled(path.read_text(), results))
