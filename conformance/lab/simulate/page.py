"""The tables of docs/benchmarks.md: the default strategy by kind of work, beside other lookups, and by turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mlx_lm.draft import BlockCosts, DraftMemory, EditStrategy, MemoryStrategy

from conformance.lab.simulate.rivals import limits, others
from conformance.lab.simulate.run import LEAST, TABLES, Make, Result, Row, decode, run
from conformance.lab.streams import VOCAB, Request, Stream
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
# In brackets, so that it counts in no mean.
EDITS = "(edits)"
TURNS = {"text": "text", "calls": "calls", EDITS: "edits among them"}
# What an edit copies stands in runs of so many tokens that are in its prompt, too.
RUN = 16


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
        decoded = [decode(make(), request, bound=length, gated=False, waits=True) for request in stream.requests]
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


def is_edit(request: Request) -> bool:
    """Whether the answer is long and more than half of it is copied."""
    prompt, answer = request.prompt, request.answer
    if len(answer) < LEAST:
        return False
    runs = {tuple(prompt[i : i + RUN]) for i in range(len(prompt) - RUN + 1)}
    starts = (i for i in range(len(answer) - RUN + 1) if tuple(answer[i : i + RUN]) in runs)
    return 2 * len({i + n for i in starts for n in range(RUN)}) > len(answer)


def drafters() -> dict[str, Make]:
    """What drafts the turns of a run: with each request alone, and as the server, with a memory of all before it."""
    memory = DraftMemory()

    def remember() -> MemoryStrategy:
        memory.wait()
        return MemoryStrategy(memory, VOCAB, EditStrategy())

    return {"edit, each request alone": EditStrategy, "edit, and the memory of all requests": remember}


def turn_by_turn(make: Make, turns: Sequence[tuple[Stream, ...]], costs: BlockCosts) -> Row:
    """Each turn once, in order. It counts under each of its names."""
    row = Row()
    for names in turns:
        result, _ = decode(make(), names[0].requests[0], costs)
        for one in names:
            row.add(one, result)
    return row


def by_turn(found: Sequence[Stream], tables: dict[str, BlockCosts]) -> str:
    """A table for each way to draft: kinds of turns, how many, their tokens, and their speed by device."""
    turns = [(one, *[replace(one, name=EDITS)] * is_edit(one.requests[0])) for one in found]
    n_turns = Counter(one.name for names in turns for one in names)
    head, parts = ["", "turns", "tokens", *(DEVICES.get(name, name) for name in tables)], list[str]()
    for label in drafters():
        # Requests share a memory, and runs do not.
        rows = [turn_by_turn(drafters()[label], turns, costs) for costs in tables.values()]
        names = [name for name in TURNS if name in n_turns]
        of = {name: [row.by_name[name] for row in rows] for name in names}
        lines = [[TURNS[name], n_turns[name], of[name][0].emitted, *(one.speed for one in of[name])] for name in names]
        lines += [["mean of text and calls", "", "", *(row.mean("speed") for row in rows)]]
        worst = (f"{row.worst:.3f}" if row.worst < math.inf else None for row in rows)
        lines += [[f"worst of {LEAST} tokens or more", "", "", *worst]]
        parts.append(f"{label}:\n\n{table(head, lines)}")
    return "\n\n".join(parts)
