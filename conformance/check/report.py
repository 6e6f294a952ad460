"""Report how this machine decodes a model: what ``check`` and ``probe`` find, and the speed of six workloads."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from conformance import first_line
from conformance.check import check, probe
from conformance.check.prompts import built_in, encode
from conformance.lab.bench.cells import LEAST_REPEATS, Ready, compared
from conformance.lab.bench.models import Subject, weights_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import number

# Edits, records, a quotation, a copy, and one text that repeats nothing. Small models repeat themselves even there,
# unless they are sampled so hot that they say any token.
WORKLOADS = ("rename", "delete", "lookup", "quote", "echo", "nothing_to_copy")
TEMPERATURES = {"nothing_to_copy": 3.0}
TOKENS = 96
Say = Callable[[str], None]


def speed(subject: Subject, name: str) -> dict[str, Any]:
    """One workload, plain and with the default drafts. It has a speed if the texts are the same."""
    prompt = list(encode(subject.tokenizer, PROMPTS[name]))
    (row,) = compared(Ready(subject, prompt, TOKENS, TEMPERATURES.get(name, 0.0)), ["auto"], LEAST_REPEATS)
    drafted, tokens = number(row["speed"]), f"{row['tokens_per_forward']:.2f} tokens a forward pass"
    print(f"{drafted} times the speed of {row['plain_tps']:.2f} tokens a second, {tokens}")
    return row


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Measure, print and return what was found. A model that fails in one part may manage the others."""
    deadline = time.monotonic() + 60 * args.minutes
    args.json = args.json or Path(f"report-{Path(args.model).name}.json")
    args.prompts = {name: messages for name, messages in built_in().items() if name.endswith("short")}
    subject = Subject(args.model, weights_of(model), model, tokenizer)
    parts: dict[str, Callable[[], Any]] = {"check": partial(check.main, args, model, tokenizer, say)}
    parts |= {name: partial(speed, subject, name) for name in WORKLOADS}
    parts["probe"] = partial(probe.main, args, model, tokenizer, say)
    # What else the machine did, in the minute before.
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name, part in parts.items():
        print(f"\n{name}:")
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("--minutes gives it more time")
            found[name] = part()
        except Exception as error:
            print(f"left out: {first_line(error)}")
    if speeds := [one["speed"] for name, one in found.items() if name in WORKLOADS and one["parity"]]:
        mean = f"{geometric_mean(speeds):.2f} times the speed of plain decoding, {min(speeds):.2f} at worst"
        print(f"\n{len(speeds)} workloads of {len(WORKLOADS)} have the same text: {mean}")
    print(f"written to {args.json}")
    return found | {"exit": 0}
