"""Report how one model is decoded on this machine: ``check``, six short workloads, ``probe`` and batches."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import mlx_lm
from mlx.utils import tree_flatten

from conformance.check import check, probe
from conformance.check.prompts import built_in, encode
from conformance.device import device
from conformance.lab.bench.cells import LEAST_REPEATS, Ready, compared
from conformance.lab.bench.models import Subject, weights_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import table

# Edits, records, a quotation, a copy, and one text that repeats nothing. Small models repeat themselves even there,
# unless they are sampled so hot that they say any token.
WORKLOADS = ("rename", "delete", "lookup", "quote", "echo", "nothing_to_copy")
TEMPERATURES = {"nothing_to_copy": 3.0}
TOKENS = 96
BATCHES, LENGTHS, REPEATS = (1, 2, 4, 8), (1, 2, 4, 8, 16), 5
VERDICTS = {0: "exact", 1: "near ties", 2: "FAULT"}
# Of the table of docs/benchmarks.md.
COLUMNS = ["machine", "model", "versions", "plain tok/s", "speed", "worst", "check"]
HEADS = {"tokens": "tokens", "plain_tps": "plain tok/s", "speed": "speed", "tokens_per_forward": "tokens a forward"}
Say = Callable[[str], None]


def about(subject: Subject) -> dict[str, Any]:
    """Describe the model and the machine, without a path and without a name of the owner."""
    chip, kind, system = device().rsplit(", ", 2)
    nbytes = sum(weight.nbytes for _, weight in tree_flatten(subject.model.parameters()))
    return {
        "model": Path(subject.name).name if Path(subject.name).is_dir() else subject.name,
        "weights": subject.weights,
        "weights_gb": round(nbytes / 1e9, 3),
        **{"chip": chip, "device": kind, "system": system, "mlx": version("mlx"), "mlx-lm": mlx_lm.__version__},
        # What else the machine did, in the minute before.
        **{"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        **{"python": platform.python_version(), "made": date.today().isoformat()},
    }


def quiet(command: Any, subject: Subject, say: Say, **args: Any) -> dict[str, Any]:
    """What a command finds, without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        found: dict[str, Any] = command.main(argparse.Namespace(**args), subject.model, subject.tokenizer, say)
    return found


def checked(subject: Subject, say: Say) -> dict[str, Any]:
    """The verdict of ``check`` on its short prompts."""
    prompts = {name: messages for name, messages in built_in().items() if name.endswith("short")}
    how = {"draft_type": "auto", "num_draft_tokens": "auto", "draft_margin": 0.0, "ungated": False}
    found = quiet(check, subject, say, prompts=prompts, max_tokens=64, **how)
    kept = ("name", "verdict", "equal", "pairs", "tokens_a_forward", "strategy")
    return {"exit": found["exit"], "prompts": [{name: one[name] for name in kept} for one in found["prompts"]]}


def probed(subject: Subject, say: Say) -> dict[str, Any]:
    """The noise and the costs of blocks, as in ``probe --quick``."""
    found = quiet(probe, subject, say, quick=True)
    return {"rows": found["rows"], **found["recommended"]}


def batched(subject: Subject, say: Say) -> list[dict[str, Any]]:
    """The cost of forward passes by rows and tokens in each row, in passes of one token of one row."""
    found: dict[tuple[int, int], float] = {}
    for rows in BATCHES:
        say(f"{rows} rows")
        seconds = probe.costs(subject.model, probe.tokens_of(subject.tokenizer), LENGTHS, REPEATS, rows)
        found |= {(rows, length): value for length, value in seconds.items()}
    return [{"rows": rows, "length": length, "cost": t / found[1, 1]} for (rows, length), t in found.items()]


def measured(subject: Subject, minutes: float, say: Say) -> dict[str, Any]:
    """A whole report. It lists the parts that were left out for lack of time."""
    deadline = time.monotonic() + 60 * minutes
    report: dict[str, Any] = {"about": about(subject), "speeds": [], "left_out": []}
    parts = {"check": checked, "probe": probed, "batch": batched}
    for part in ("check", *WORKLOADS, "probe", "batch"):
        if time.monotonic() > deadline:
            report["left_out"].append(part)
            continue
        say(part)
        try:
            if part in parts:
                report[part] = parts[part](subject, say)
            else:
                # One workload, plain and with the default drafts.
                prompt = list(encode(subject.tokenizer, PROMPTS[part]))
                ready = Ready(subject, prompt, TOKENS, TEMPERATURES.get(part, 0.0))
                (row,) = compared(ready, ["auto"], LEAST_REPEATS)
                report["speeds"].append({"workload": part} | row)
        except Exception as error:
            # A model that fails in one part may manage the others.
            report["left_out"].append(f"{part} ({type(error).__name__}: {str(error)[:80]})")
    return report


def page(report: dict[str, Any]) -> Iterator[str]:
    """A report as Markdown. The last line of a whole one fits the table of docs/benchmarks.md."""
    about, check = report["about"], report.get("check")
    yield f"# {about['model']} on {about['chip']}, {about['device']}\n"
    yield from (f"{name} {about[name]}" for name in "system cores load mlx mlx-lm python made weights".split())
    verdict = VERDICTS[check["exit"]] if check else "not asked"
    yield f"{about['weights_gb']} GB\ncheck {verdict}\n"
    rows = [[one["workload"], *map(one.get, HEADS), "yes" if one["parity"] else "NO"] for one in report["speeds"]]
    yield table(["workload", *HEADS.values(), "same text"], rows)
    if "probe" in report:
        yield "\nWhat a block costs, in passes of one token, and how far its log probabilities are off:\n"
        noises = (("no number" if (n := one["noise"]) is None else f"{n:.1e}", one) for one in report["probe"]["rows"])
        yield table(["block", "cost", "noise"], ([one["length"], one["cost"], noise] for noise, one in noises))
    if "batch" in report:
        yield "\nWhat a pass of several rows costs, in passes of one token of one row:\n"
        yield table(["rows", "block", "cost"], ([one["rows"], one["length"], one["cost"]] for one in report["batch"]))
    if report["left_out"]:
        yield f"\nLeft out: {', '.join(report['left_out'])}.\n"
        yield "This report is not complete, so it has no line for the table. --minutes gives it more time.\n"
    else:
        # Speeds are those of the workloads that have the same text.
        speeds = [one["speed"] for one in report["speeds"] if one["parity"]]
        cells = [
            f"{about['chip']}, {about['device']}, {about['cores']} cores, load {about['load']}",
            f"{about['model']}, {about['weights']}",
            f"mlx {about['mlx']}, mlx-lm {about['mlx-lm']}",
            geometric_mean(one["plain_tps"] for one in report["speeds"]),
            geometric_mean(speeds) if speeds else None,
            min(speeds, default=None),
            f"{verdict}, {len(speeds)} of {len(rows)} texts the same",
        ]
        yield f"\nThe line for the table of docs/benchmarks.md:\n\n{table(COLUMNS, [cells])}\n"


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, and write the report and its page."""
    subject = Subject(args.model, weights_of(model), model, tokenizer)
    # A model may compute NaN or infinity, which JSON does not have.
    report = json.loads(json.dumps(measured(subject, args.minutes, say)), parse_constant=lambda _: None)
    found, text = report["about"], "\n".join(page(report))
    name = re.sub(r"\W+", "-", f"report {found['model'].split('/')[-1]} {found['chip']} {found['device']}").lower()
    path = Path(f"{name.strip('-')}.json")
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")
    say("")
    print(f"{text}\nwritten: {path} and {path.with_suffix('.md').name}")
    return {"exit": 0}
