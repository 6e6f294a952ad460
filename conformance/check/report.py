"""Report how one model is decoded on this machine: ``check``, ``probe``, batches, and six short workloads.

scripts/report.sh --model PATH_OR_REPO        # about ten minutes: writes report-*.json and report-*.md
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import re
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx_lm
from mlx.utils import tree_flatten

from conformance.check import check, probe
from conformance.check.page import page
from conformance.check.prompts import built_in, encode
from conformance.device import device
from conformance.lab.bench.cells import LEAST_REPEATS, Ready, compared
from conformance.lab.bench.models import Subject, weights_of
from conformance.subjects.prompts import PROMPTS

# Edits, records, a quotation, a copy, and one text that repeats nothing. Small models repeat themselves even there,
# unless they are sampled so hot that they say any token.
WORKLOADS = ("rename", "delete", "lookup", "quote", "echo", "nothing_to_copy")
TEMPERATURES = {"nothing_to_copy": 3.0}
TOKENS = 96
BATCHES, LENGTHS, REPEATS = (1, 2, 4, 8), (1, 2, 4, 8, 16), 5
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
        **{"python": platform.python_version(), "made": date.today().isoformat()},
    }


def checked(subject: Subject, say: Say) -> dict[str, Any]:
    """The verdict of ``check`` on its short prompts."""
    prompts = {name: messages for name, messages in built_in().items() if name.endswith("short")}
    args = argparse.Namespace(
        prompts=prompts, max_tokens=64, draft_type="auto", num_draft_tokens="auto", draft_margin=0.0, ungated=False
    )
    with contextlib.redirect_stdout(io.StringIO()):
        found = check.main(args, subject.model, subject.tokenizer, say)
    kept = ("name", "verdict", "equal", "pairs", "tokens_a_forward", "strategy")
    return {"exit": found["exit"], "prompts": [{name: one[name] for name in kept} for one in found["prompts"]]}


def probed(subject: Subject, say: Say) -> dict[str, Any]:
    """The noise and the costs of blocks, as in ``probe --quick``."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = probe.main(argparse.Namespace(quick=True), subject.model, subject.tokenizer, say)
    kept = ("length", "noise", "changed", "cost")
    return {"rows": [{name: row[name] for name in kept} for row in found["rows"]], **found["recommended"]}


def batched(subject: Subject, say: Say) -> list[dict[str, Any]]:
    """The cost of forward passes by rows and tokens in each row, in passes of one token of one row."""
    found: dict[tuple[int, int], float] = {}
    for rows in BATCHES:
        say(f"{rows} rows")
        seconds = probe.costs(subject.model, probe.tokens_of(subject.tokenizer), LENGTHS, REPEATS, rows)
        found |= {(rows, length): value for length, value in seconds.items()}
    return [{"rows": rows, "length": length, "cost": t / found[1, 1]} for (rows, length), t in found.items()]


def timed(subject: Subject, name: str) -> dict[str, Any]:
    """Time one workload, plain and with the default drafts."""
    ready = Ready(subject, list(encode(subject.tokenizer, PROMPTS[name])), TOKENS, TEMPERATURES.get(name, 0.0))
    (row,) = compared(ready, ["auto"], LEAST_REPEATS)
    return {"workload": name} | row


def parts(subject: Subject, say: Say) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in WORKLOADS:
        yield name, partial(timed, subject, name)
    yield "probe", partial(probed, subject, say)
    yield "batch", partial(batched, subject, say)
    yield "check", partial(checked, subject, say)


def measured(subject: Subject, minutes: float, say: Say) -> dict[str, Any]:
    """A whole report. It lists the parts that were left out for lack of time."""
    deadline = time.monotonic() + 60 * minutes
    report: dict[str, Any] = {"about": about(subject)}
    report |= {"speeds": [], "check": None, "probe": None, "batch": [], "left_out": []}
    for part, found in parts(subject, say):
        if time.monotonic() > deadline:
            report["left_out"].append(part)
            continue
        say(part)
        try:
            value = found()
        except Exception as error:
            # A model that fails in one part may manage the others.
            report["left_out"].append(f"{part} ({type(error).__name__}: {str(error)[:80]})")
            continue
        if part in WORKLOADS:
            report["speeds"].append(value)
        else:
            report[part] = value
    return report


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, and write the report and its page."""
    subject = Subject(args.model, weights_of(model), model, tokenizer)
    # A model may compute NaN or infinity, which JSON does not have.
    report = json.loads(json.dumps(measured(subject, args.minutes, say)), parse_constant=lambda _: None)
    found = report["about"]
    name = re.sub(r"\W+", "-", f"report {found['model'].split('/')[-1]} {found['chip']} {found['device']}").lower()
    path = args.out / f"{name.strip('-')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(page(report), "utf-8")
    say("")
    print(page(report))
    print(f"written: {path} and {path.with_suffix('.md').name}")
    return {"exit": 0}
