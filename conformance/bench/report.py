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
from conformance.bench.results import CELLS, Run, chosen, different, mean, rows, values
from conformance.bench.strategies import AUTO

DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "serving.md", ROOT / "README.md")
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


def subjects(runs: Sequence[Run]) -> str:
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


def workloads(runs: Sequence[Run]) -> str:
    """The default strategy on each class of text."""
    found, lines = chosen(rows(runs, "workloads"), strategy=AUTO), []
    names = ("model", "weights", "workload", "answer", "size", "turn")
    for labels in different(found, *names):
        some = chosen(found, **dict(zip(names, labels, strict=True)))
        prompt = sum(row["prompt_tokens"] for row in some) // len(some)
        facts = [prompt, speed(some), spread(some), min(values(some, "speed"), default=None)]
        for name in ("plain_tps", "tps", "prefill_tps", "tokens_per_forward", "fed_per_token", "acceptance"):
            # A share that is 0 has no logarithm.
            measured = values(some, name)
            facts.append(sum(measured) / len(measured) if measured else None)
        facts += [mean(values(some, "ideal")), mean(values(some, "reached"))]
        lines.append([*labels, *facts])
    head = [
        "model",
        "weights",
        "workload",
        "answer",
        "context",
        "turn",
        "prompt tokens",
        "speed",
        "spread",
        "worst prompt",
    ]
    head += ["plain tokens/s", "drafted tokens/s", "prefill tokens/s", "tokens a forward", "fed a token"]
    return table([*head, "accepted", "ideal", "reached"], lines)


def summary(runs: Sequence[Run]) -> str:
    """The default strategy on each class, in short contexts, all turns and both kinds of answers together."""
    found, lines = chosen(rows(runs[:1], "workloads"), strategy=AUTO, size="short"), []
    for (workload,) in different(found, "workload"):
        some = chosen(found, workload=workload)
        least = min(values(some, "speed"), default=None)
        lines.append([workload, len(some), speed(some), least, mean(values(some, "ideal"))])
    return table(["workload", "prompts", "speed", "worst prompt", "ideal"], lines)


def strategies(runs: Sequence[Run]) -> str:
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


def turns(runs: Sequence[Run]) -> str:
    """The n-gram memory turn by turn."""
    found, lines = rows(runs, "memory"), []
    for model, workload, turn in different(found, "model", "workload", "turn"):
        some = chosen(found, model=model, workload=workload, turn=turn)
        pair = [chosen(some, state=state) for state in ("cold", "warm")]
        accepted = [mean([max(v, 1e-9) for v in values(each, "acceptance")]) for each in pair]
        lines.append([model, workload, turn, *map(speed, pair), *accepted])
    return table(["model", "workload", "turn", "cold", "warm", "accepted cold", "accepted warm"], lines)


def sweep(runs: Sequence[Run]) -> str:
    """All options, as means over the workloads, and the worst of these."""
    found, lines = rows(runs, "sweep"), []
    for model, strategy, options in different(found, "model", "strategy", "options"):
        some = chosen(found, model=model, strategy=strategy, options=options)
        low = min(values(some, "speed"), default=None)
        worst = next((row["task"] for row in some if row["speed"] == low), "—")
        facts = [mean(values(some, name)) for name in ("tokens_per_forward", "fed_per_token", "reached")]
        lines.append([model, strategy, options, speed(some), low, worst, *facts])
    head = ["model", "strategy", "options", "speed", "worst", "which", "tokens a forward", "fed a token", "reached"]
    return table(head, lines)


def types(runs: Sequence[Run]) -> str:
    shown = rows(runs, "types")
    wanted = {(row["task"], row["answer"]) for row in shown}
    base = chosen(rows(runs, "workloads"), strategy=AUTO, size="short")
    found = [row for row in base if (row["task"], row["answer"]) in wanted] + shown
    lines = [
        [row["weights"], row["task"], row["answer"], speed([row]), spread([row]), row["plain_tps"], row["ideal"]]
        for row in found
    ]
    return table(["weights", "prompt", "answer", "speed", "spread", "plain tokens/s", "ideal"], lines)


def costs(runs: Sequence[Run]) -> str:
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


def drafters(runs: Sequence[Run]) -> str:
    lines = [
        [row["drafter"], row["context"], row["index_us"], row["match_us"], row["miss_us"], mib(row["bytes"])]
        for row in sorted(rows(runs, "drafters"), key=lambda row: (row["drafter"], row["context"]))
    ]
    return table(["drafter", "context", "us to take in a token", "us, match", "us, miss", "MiB"], lines)


def mib(size: float | None) -> float | None:
    return None if size is None else size / 2**20


def overhead(runs: Sequence[Run]) -> str:
    names = ("draft", "plan", "rewind", "loop")
    lines = []
    for row in rows(runs, "overhead"):
        total = sum(row[name] for name in names)
        share = f"{100 * total / (total + row['model_us']):.1f} %"
        facts = (f"{row[name]:.0f}" for name in names)
        lines.append([row["model"], row["workload"], row["strategy"], *facts, f"{total:.0f}", share])
    head = ["model", "workload", "strategy", "draft", "plan", "rewind", "compare and loop", "all", "of a forward"]
    return table(head, lines)


def rewinds(runs: Sequence[Run]) -> str:
    found, lines = rows(runs, "rewinds"), []
    ways = [way for (way,) in different(found, "way")]
    for model, kind, rate in different(found, "model", "kind", "rate"):
        some = chosen(found, model=model, rate=rate)
        tps = some[0]["plain_tps"]
        lines.append([model, kind, rate, tps, *(speed(chosen(some, way=way)) for way in ways)])
    return table(["model", "kind", "acceptance", "plain tokens/s", *ways], lines)


def first(runs: Sequence[Run]) -> str:
    """The first response of a model against the second."""
    labels = ("model", "weights", "workload", "answer", "first", "second", "ratio")
    lines = [[*(row[name] for name in labels), spread([row])] for row in rows(runs, "first")]
    head = ["model", "weights", "workload", "answer", "speed of the first", "of the second", "first over second"]
    return table([*head, "spread"], lines)


def peers(runs: Sequence[Run]) -> str:
    lines = []
    for row in rows(runs, "peers"):
        if "missing" in row:
            lines.append([row["peer"], "—", "—", f"missing: {row['missing']}", *["—"] * 4])
            continue
        facts = [row["plain_tps"], row["tokens_per_forward"], row["fed_per_token"]]
        lines.append([row["peer"], row["options"], row["workload"], speed([row]), spread([row]), *facts])
    ours = chosen(rows(runs, "workloads"), answer="own", size="short")
    workloads = {row.get("workload") for row in rows(runs, "peers")}
    for row in ours:
        if row["workload"] in workloads and row["task"].endswith(" 1"):
            facts = [row["plain_tps"], row["tokens_per_forward"], row["fed_per_token"]]
            lines.append(["this series", row["strategy"], row["workload"], speed([row]), spread([row]), *facts])
    head = ["who", "options", "workload", "speed", "spread", "plain tokens/s", "tokens a forward", "fed a token"]
    return table(head, lines)


def serving(runs: Sequence[Run]) -> str:
    lines = []
    for row in rows(runs, "serving"):
        facts = [row["requests"], row["clients"], row["plain"]]
        lines.append([row["model"], *facts, speed([row]), spread([row]), row["tokens_per_forward"]])
    head = ["model", "requests", "clients", "plain", "speed", "spread", "tokens a forward"]
    return table(head, lines)


TABLES: dict[str, Callable[[Sequence[Run]], str]] = {
    each.__name__: each
    for each in (
        subjects,
        workloads,
        summary,
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


def filled(text: str, runs: Sequence[Run]) -> str:
    """A document with the tables of these results between its markers."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](runs) + found[3], text)


def stale(documents: Sequence[Path], runs: Sequence[Run]) -> list[Path]:
    """The documents whose tables are not those of the results."""
    return [path for path in documents if filled(path.read_text(), runs) != path.read_text()]


def write(documents: Sequence[Path], runs: Sequence[Run]) -> None:
    for path in documents:
        path.write_text(filled(path.read_text(), runs))
