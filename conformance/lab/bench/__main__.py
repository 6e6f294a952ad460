"""Make the tables of docs/benchmarks.md and docs/use.md that time the fixture, and the picture: scripts/bench.sh"""

from __future__ import annotations

import itertools
import logging
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from conformance import ROOT
from conformance.arguments import parser
from conformance.device import device
from conformance.lab.bench import models, serving, tables, tasks
from conformance.lab.bench.cells import LEAST_REPEATS, REPEATS, Ready, Row, compared
from conformance.lab.bench.models import Subject, block_seconds
from conformance.tables import number

OUT = ROOT / "docs" / "benchmarks"
PACKAGES = ("mlx-lm", "mlx", "transformers", "numpy")
# The lengths of blocks, and the turns in which one text is edited.
LENGTHS, TURNS = (1, 2, 3, 5, 9, 16), 4
# Without a gain the differences are hundredths, so prose gets this many times as many repetitions.
PROSE_FACTOR = 3


@dataclass(frozen=True)
class Plan:
    """How much one run measures, and how often: the sizes of a full run."""

    repeats: int = REPEATS
    tokens: int = 80
    prompts: int = 2
    workloads: tuple[str, ...] = tuple(tasks.WORKLOADS)
    hidden: int = models.HIDDEN
    contexts: tuple[int, ...] = (2048, 8192)
    block_contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    clients: tuple[int, ...] = (1, 2, 4, 8)


# It only checks that the benchmark works.
QUICK = Plan(
    repeats=LEAST_REPEATS,
    tokens=12,
    prompts=1,
    workloads=("echo", "delete", "prose"),
    hidden=512,
    contexts=(1024,),
    block_contexts=(128, 256),
    clients=(1, 2),
)


def blocks(subject: Subject, plan: Plan) -> Iterator[Row]:
    """The cost of blocks, in passes of one token: after each context, and in other number types after the first."""
    for weights in (subject.weights, "fp16", "fp32"):
        one = subject if weights == subject.weights else models.larger(plan.hidden, weights)
        for context in plan.block_contexts if one is subject else plan.block_contexts[:1]:
            cache = one.prefilled([i * 7 % one.tokenizer.vocab_size for i in range(context)])
            seconds = block_seconds(one.model, cache, LENGTHS, plan.repeats)
            costs = {f"block of {length}": value / seconds[1] for length, value in seconds.items()}
            memory = {"MiB of cache": sum(c.nbytes for c in cache) / 2**20}
            yield {"weights": weights, "context": context, "ms a token": 1e3 * seconds[1], **costs, **memory}


def workloads(subject: Subject, plan: Plan) -> Iterator[Row]:
    """The default drafts on every prompt."""
    every = tasks.singles(plan.workloads, plan.prompts), tasks.edits(TURNS), tasks.in_context(subject, plan.contexts)
    for task in itertools.chain(*every):
        prompt, text = task.encoded(subject)
        repeats = plan.repeats * (PROSE_FACTOR if task.workload == "prose" else 1)
        (row,) = compared(Ready(subject, prompt, plan.tokens, text=text), ["auto"], repeats)
        yield task.labels() | {"prompt_tokens": len(prompt)} | row


def servings(subject: Subject, plan: Plan) -> Iterator[Row]:
    return serving.measure(subject, plan.clients, plan.tokens, plan.repeats)


def subjects(subject: Subject, plan: Plan) -> Iterator[Row]:
    """What is measured, and where."""
    versions = [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    sizes = {"prompts": plan.prompts, "repetitions": plan.repeats, "tokens": plan.tokens}
    yield {"device": device(), "model": subject.name, "versions": ", ".join(versions), **sizes}


STAGES = {"blocks": blocks, "workloads": workloads, "serving": servings}


def measure(names: list[str], plan: Plan, out: Path) -> bool:
    """Run the stages. Each writes its file when it is done. Returns whether all cells have parity."""
    subject, equal = models.larger(plan.hidden), True
    for name, stage in [("subjects", subjects), *((name, STAGES[name]) for name in names)]:
        rows = []
        for row in stage(subject, plan):
            rows.append(row)
            logging.info(f"{name}: {', '.join(f'{key} {number(value)}' for key, value in row.items())}")
            equal = equal and row.get("parity", True)
        pd.DataFrame(rows).to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    return equal


def main() -> int:
    options = parser(__doc__, "bench.sh")
    options.add_argument("--quick", action="store_true", help="small settings; writes to a temporary directory")
    options.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME")
    options.add_argument("--render", action="store_true", help="write the tables and the picture again")
    args = options.parse_args()
    # One line a row, with its time.
    logging.basicConfig(format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    out = Path(tempfile.mkdtemp(prefix="bench-")) if args.quick else OUT
    equal = args.render or measure(args.stages, QUICK if args.quick else Plan(), out)
    results = tables.load(out)
    for document in tables.DOCUMENTS:
        path = Path(shutil.copy(document, out)) if args.quick else document
        path.write_text(tables.filled(path.read_text(), results))
    if "workloads" in results:
        tables.draw(results, out)
    logging.info(f"wrote the tables and the picture, and the results in {out}")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
