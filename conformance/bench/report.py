"""The Markdown tables, made from the results and put between markers in the documents.

A document holds ``<!-- bench NAME -->`` and ``<!-- end NAME -->``; what is between them is the table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.bench.cells import Row
from conformance.bench.results import CELLS, Results, chosen, different, mean, rows, values
from conformance.bench.strategies import AUTO

DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "use.md")
MARKED = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
NO_PARITY = "no parity"


def number(value: Any, digits: int = 2) -> str:
    if value is None:
        return "—"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Empty where there is nothing to show."""
    if not lines:
        return "Not measured yet.\n"
    body = ["| " + " | ".join(number(cell) for cell in line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(head) + " |", "| --- " * len(head) + "|", *body]) + "\n"


def spread(found: Sequence[Row]) -> str:
    """From the least to the largest ratio of all pairs."""
    low, high = values(found, "low"), values(found, "high")
    return f"{min(low):.2f} to {max(high):.2f}" if low else "—"


def speed(found: Sequence[Row]) -> str:
    """The mean of the cells, unless one of them has no parity."""
    if not found:
        return "—"
    if any(not row["parity"] for row in found):
        return NO_PARITY
    return number(mean(values(found, "speed")))


def subjects(runs: Sequence[Results]) -> str:
    """What was measured where."""
    lines = []
    for run in runs:
        versions = run["meta"]["versions"]
        used = ", ".join(f"{name} {value}" for name, value in versions.items() if value != "none")
        plan, parity = run["meta"]["plan"], [row["parity"] for stage in CELLS for row in run.get(stage, [])]
        lines.append(
            [
                run["meta"]["model"],
                run["meta"]["device"],
                used,
                plan["prompts"],
                plan["repeats"],
                plan["tokens"],
                f"{sum(parity)} of {len(parity)}",
            ]
        )
    head = ["model", "device", "versions", "prompts a workload", "repetitions", "tokens at most", "cells with parity"]
    return table(head, lines)


def workloads(runs: Sequence[Results]) -> str:
    """The default strategy on each class and context, all turns and kinds of answers together; the page has each."""
    found, lines = chosen(rows(runs, "workloads"), strategy=AUTO), []
    names = ("model", "weights", "workload", "size")
    for labels in different(found, *names):
        some = chosen(found, **dict(zip(names, labels, strict=True)))
        facts = [len(some), speed(some), spread(some), min(values(some, "speed"), default=None)]
        for name in ("tokens_per_forward", "acceptance"):
            # A share that is 0 has no logarithm.
            measured = values(some, name)
            facts.append(sum(measured) / len(measured) if measured else None)
        lines.append([*labels, *facts, mean(values(some, "ideal")), mean(values(some, "reached"))])
    head = ["model", "weights", "workload", "context", "prompts", "speed", "spread", "worst prompt"]
    return table([*head, "tokens a forward", "accepted", "ideal", "reached"], lines)


def strategies(runs: Sequence[Results]) -> str:
    """All strategies, on the prompts that more than the default had."""
    found = rows(runs, "workloads")
    used = [name for (name,) in different(found, "strategy")]
    tasks = different(
        [row for row in found if row["strategy"] in used[1:]], "model", "weights", "task", "answer", "size"
    )
    lines: list[list[Any]] = []
    for model, weights, task, answer, size in tasks:
        some = chosen(found, model=model, weights=weights, task=task, answer=answer, size=size)
        lines.append([model, task, answer, size, *(speed(chosen(some, strategy=name)) for name in used)])
    return table(["model", "prompt", "answer", "context", *used], lines)


def turns(runs: Sequence[Results]) -> str:
    """The n-gram memory turn by turn."""
    found, lines = rows(runs, "memory"), []
    for model, workload, turn in different(found, "model", "workload", "turn"):
        some = chosen(found, model=model, workload=workload, turn=turn)
        pair = [chosen(some, state=state) for state in ("cold", "warm")]
        accepted = [mean([max(v, 1e-9) for v in values(each, "acceptance")]) for each in pair]
        lines.append([model, workload, turn, *map(speed, pair), *accepted])
    return table(["model", "workload", "turn", "cold", "warm", "accepted cold", "accepted warm"], lines)


def sweep(runs: Sequence[Results]) -> str:
    """Each strategy with its defaults, its best and its worst options, as means; the page has all options."""
    found, lines = rows(runs, "sweep"), []
    for model, strategy in different(found, "model", "strategy"):
        some = chosen(found, model=model, strategy=strategy)
        by_options = {options: chosen(some, options=options) for (options,) in different(some, "options")}
        order = sorted(by_options, key=lambda options: mean(values(by_options[options], "speed")) or 0.0, reverse=True)
        for options in dict.fromkeys([*(options for options in order if not options), order[0], order[-1]]):
            each = by_options[options]
            low = min(values(each, "speed"), default=None)
            worst = next((row["task"] for row in each if row["speed"] == low), "—")
            facts = [mean(values(each, name)) for name in ("tokens_per_forward", "fed_per_token", "reached")]
            lines.append([model, strategy, options, speed(each), low, worst, *facts])
    head = ["model", "strategy", "options", "speed", "worst", "which", "tokens a forward", "fed a token", "reached"]
    return table(head, lines)


def types(runs: Sequence[Results]) -> str:
    shown = rows(runs, "types")
    wanted = {(row["task"], row["answer"]) for row in shown}
    base = chosen(rows(runs, "workloads"), strategy=AUTO, size="short")
    found = [row for row in base if (row["task"], row["answer"]) in wanted] + shown
    lines = [
        [row["weights"], row["task"], row["answer"], speed([row]), spread([row]), row["plain_tps"], row["ideal"]]
        for row in found
    ]
    return table(["weights", "prompt", "answer", "speed", "spread", "plain tokens/s", "ideal"], lines)


def costs(runs: Sequence[Results]) -> str:
    found = rows(runs, "blocks")
    lengths = list(dict.fromkeys(length for row in found for length in row["costs"]))
    lines = [
        [
            row["model"],
            row["weights"],
            row["context"],
            row["token_ms"],
            row.get("plain_step"),
            *(row["costs"].get(length) for length in lengths),
            row["kv_bytes"] / 2**20,
        ]
        for row in found
    ]
    blocks = [f"block of {n}" for n in lengths]
    head = ["model", "weights", "context", "ms a token", "plain step", *blocks, "MiB of cache"]
    return table(head, lines)


def drafters(runs: Sequence[Results]) -> str:
    """At every third length, from the longest on."""
    found = rows(runs, "drafters")
    shown = sorted({row["context"] for row in found}, reverse=True)[::3]
    lines = [
        [row["drafter"], row["context"], row["index_us"], row["match_us"], row["miss_us"], mib(row["bytes"])]
        for row in sorted(found, key=lambda row: (row["drafter"], row["context"]))
        if row["context"] in shown
    ]
    return table(["drafter", "context", "us to take in a token", "us, match", "us, miss", "MiB"], lines)


def mib(size: float | None) -> float | None:
    return None if size is None else size / 2**20


def overhead(runs: Sequence[Results]) -> str:
    names = ("draft", "plan", "rewind", "loop")
    lines = []
    for row in rows(runs, "overhead"):
        total = sum(row[name] for name in names)
        share = f"{100 * total / (total + row['model_us']):.1f} %"
        facts = (f"{row[name]:.0f}" for name in names)
        lines.append([row["model"], row["workload"], row["strategy"], *facts, f"{total:.0f}", share])
    head = ["model", "workload", "strategy", "draft", "plan", "rewind", "compare and loop", "all", "of a forward"]
    return table(head, lines)


def rewinds(runs: Sequence[Results]) -> str:
    found, lines = rows(runs, "rewinds"), []
    ways = [way for (way,) in different(found, "way")]
    for model, kind, rate in different(found, "model", "kind", "rate"):
        some = chosen(found, model=model, rate=rate)
        tps = some[0]["plain_tps"]
        lines.append([model, kind, rate, tps, *(speed(chosen(some, way=way)) for way in ways)])
    return table(["model", "kind", "acceptance", "plain tokens/s", *ways], lines)


def first(runs: Sequence[Results]) -> str:
    """The first response of a model against the second."""
    labels = ("model", "weights", "workload", "answer", "first", "second", "ratio")
    lines = [[*(row[name] for name in labels), spread([row])] for row in rows(runs, "first")]
    head = ["model", "weights", "workload", "answer", "speed of the first", "of the second", "first over second"]
    return table([*head, "spread"], lines)


def peers(runs: Sequence[Results]) -> str:
    """A line for each implementation and its options, with the speed on each workload."""
    runs = [run for run in runs if run.get("peers")]
    found = rows(runs, "peers")
    there = [{"who": row["peer"]} | row for row in found if "missing" not in row]
    workloads = [workload for (workload,) in different(there, "workload")]
    for row in chosen(rows(runs, "workloads"), answer="own", size="short"):
        if row["workload"] in workloads and row["task"].endswith(" 1"):
            there.append(row | {"who": "this series", "options": row["strategy"]})
    lines: list[list[Any]] = []
    for who, options in different(there, "who", "options"):
        some = chosen(there, who=who, options=options)
        plain = values(some, "plain_tps")
        speeds = (speed(chosen(some, workload=workload)) for workload in workloads)
        lines.append([who, options, sum(plain) / len(plain) if plain else None, *speeds])
    gaps = ["—"] * (1 + len(workloads))
    lines += [[row["peer"], f"missing: {row['missing']}", *gaps] for row in found if "missing" in row]
    return table(["who", "options", "plain tokens/s", *workloads], lines)


def serving(runs: Sequence[Results]) -> str:
    lines = []
    for row in rows(runs, "serving"):
        facts = [row["requests"], row["clients"], row["plain"]]
        lines.append([row["model"], *facts, speed([row]), spread([row]), row["tokens_per_forward"]])
    head = ["model", "requests", "clients", "plain", "speed", "spread", "tokens a forward"]
    return table(head, lines)


TABLES: dict[str, Callable[[Sequence[Results]], str]] = {
    each.__name__: each
    for each in (
        subjects,
        workloads,
        strategies,
        turns,
        sweep,
        types,
        costs,
        drafters,
        overhead,
        first,
        rewinds,
        peers,
        serving,
    )
}


def filled(text: str, runs: Sequence[Results]) -> str:
    """A document with the tables of these results between its markers."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](runs) + found[3], text)


def stale(documents: Sequence[Path], runs: Sequence[Results]) -> list[Path]:
    """The documents whose tables are not those of the results."""
    return [path for path in documents if filled(path.read_text(), runs) != path.read_text()]


def write(documents: Sequence[Path], runs: Sequence[Results]) -> None:
    for path in documents:
        path.write_text(filled(path.read_text(), runs))
