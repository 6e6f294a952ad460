"""The tables that docs/benchmarks.md begins with: the default strategy by kind of work, and beside other lookups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlx_lm.draft import EditStrategy

from conformance.lab.simulate.rivals import limits, others
from conformance.lab.simulate.run import LEAST, TABLES, Make, Result, Row, decode, run
from conformance.lab.streams import Stream
from conformance.tables import table

DEVICES = {"cpu": "CPU", "m4": "M4 Pro", "gpu": "GPU"}
# What was asked, by the name of its kind: of the answers, and of the edits.
WORK = {
    "rename": "rename a parameter",
    "annotate": "add type annotations",
    "document": "add a docstring",
    "next version": "add checks to a function",
    "quote": "quote two sentences",
    "summarize": "summarize a text",
    "answer": "answer a question in prose",
    "complete": "complete a function",
    "examples": "turn examples into tests",
    "rename solution": "rename a function",
    "call": "call a tool",
    "schema": "replace a word in JSON",
    "table to JSON": "fill JSON from a table",
    "JSON to table": "make a table from JSON",
    "look up": "find a row of a table",
}
EDITED = {
    "release": "write the next release of a file",
    "async to sync": "make async code synchronous",
    "black": "format code",
    "table to JSON": "fill JSON from a table",
    "document": "write the next release of a README",
}


def by_kind(found: Sequence[Stream]) -> str:
    """The speed of the default strategy, and of an oracle that knows which earlier place is copied next."""
    rows = [run(EditStrategy, found, costs) for costs in TABLES.values()]
    rows += [limits(found, costs)["knows the place"] for costs in TABLES.values()]
    kinds = sorted((name for name in rows[0].by_name if name[0] != "("), key=lambda name: -rows[0].by_name[name].speed)
    work = EDITED if "release" in kinds else WORK
    lines = [[work.get(name, name), *(row.by_name[name].speed for row in rows)] for name in kinds]
    lines += [["mean", *(row.mean("speed") for row in rows)]]
    lines += [[f"worst of {LEAST} tokens or more", *(f"{row.worst:.3f}" for row in rows)]]
    return table(["", *DEVICES.values(), *(f"limit, {name}" for name in DEVICES.values())], lines)


def alone(make: Make, found: Sequence[Stream], length: int) -> list[Row]:
    """Whole drafts, always: whatever a device costs, it feeds the same."""
    rows = [Row() for _ in TABLES]
    for stream in found:
        decoded = [decode(make(), request, bound=length, gated=False) for request in stream.requests]
        for row, costs in zip(rows, TABLES.values(), strict=True):
            spent = (replace(one, spent=sum(costs(1 + len(draft)) for draft in drafts)) for one, drafts in decoded)
            row.add(stream, sum(spent, Result()))
    return rows


def beside_others(found: Sequence[Stream]) -> str:
    """The mean of each lookup, and the worst answer in brackets: with our planner, and with a length of its own."""
    lines = []
    for name, (_, length) in others().items():
        # Requests share a memory, and runs do not.
        rows = [run(others()[name][0], found, costs) for costs in TABLES.values()]
        rows += alone(others()[name][0], found, length)
        lines.append([f"{name}, {length}", *(f"{row.mean('speed'):.2f} ({row.worst:.2f})" for row in rows)])
    return table(["lookup, tokens", *DEVICES.values(), *(f"alone, {name}" for name in DEVICES.values())], lines)
