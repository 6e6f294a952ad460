"""Make the tables of docs/benchmarks.md and docs/use.md that time the fixture, and the picture: scripts/bench.sh

scripts/bench.sh                     # everything, at most 90 minutes on two cores
scripts/bench.sh --quick             # at most 3 minutes: shows that it works, checks no times
scripts/bench.sh --stages serving    # one of: blocks, workloads, serving
scripts/bench.sh --render            # measure nothing; write the tables and the picture again
"""

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
from conformance.lab.bench.costs import block_seconds
from conformance.lab.bench.models import Subject
from conformance.tables import number

OUT = (ROOT / "docs" / "benchmarks").resolve()
PACKAGES = ("mlx-lm", "mlx", "transformers", "numpy")


@dataclass(frozen=True)
class Plan:
    """How much one run measures, and how often: the sizes of a full run."""

    repeats: int = REPEATS
    # Without a gain the differences are hundredths, so prose gets this many times as many repetitions.
    prose_factor: int = 3
    tokens: int = 80
    prompts: int = 2
    workloads: tuple[str, ...] = tuple(tasks.WORKLOADS)
    hidden: int = models.HIDDEN
    contexts: tuple[int, ...] = (2048, 8192)
    turns: int = 4
    lengths: tuple[int, ...] = (1, 2, 3, 5, 9, 16)
    block_contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    clients: tuple[int, ...] = (1, 2, 4, 8)


# It only checks that the benchmark works.
QUICK = Plan(
    repeats=LEAST_REPEATS,
    prose_factor=1,
    tokens=12,
    prompts=1,
    workloads=("echo", "delete", "prose"),
    hidden=512,
    contexts=(1024,),
    turns=2,
    lengths=(1, 2, 5),
    block_contexts=(128, 256),
    clients=(1, 2),
)


def blocks(subject: Subject, plan: Plan) -> Iterator[Row]:
    """The cost of blocks, in passes of one token: after each context, and in other number types after the first."""
    for weights in (subject.weights, "fp16", "fp32"):
        one = subject if weights == subject.weights else models.larger(plan.hidden, weights)
        for context in plan.block_contexts if one is subject else plan.block_contexts[:1]:
            cache = one.prefilled([i * 7 % one.tokenizer.vocab_size for i in range(context)])
            seconds = block_seconds(one.model, cache, plan.lengths, plan.repeats)
            costs = {f"block of {length}": value / seconds[1] for length, value in seconds.items()}
            memory = {"MiB of cache": sum(c.nbytes for c in cache) / 2**20}
            yield {"weights": weights, "context": context, "ms a token": 1e3 * seconds[1], **costs, **memory}


def workloads(subject: Subject, plan: Plan) -> Iterator[Row]:
    """The default drafts on every prompt."""
    every = (
        tasks.singles(plan.workloads, plan.prompts),
        tasks.edits(plan.turns),
        tasks.in_context(subject, plan.contexts),
    )
    for task in itertools.chain(*every):
        prompt, text = task.encoded(subject)
        repeats = plan.repeats * (plan.prose_factor if task.workload == "prose" else 1)
        (row,) = compared(Ready(subject, prompt, plan.tokens, text=text), ["auto"], repeats)
        yield task.labels() | {"prompt_tokens": len(prompt)} | row


def servings(subject: Subject, plan: Plan) -> Iterator[Row]:
    return serving.measure(subject, plan.clients, plan.tokens, plan.repeats)


STAGES = {"blocks": blocks, "workloads": workloads, "serving": servings}


def about(subject: Subject, plan: Plan) -> Row:
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    shown = ", ".join(f"{name} {value}" for name, value in versions.items())
    sizes = {"prompts": plan.prompts, "repetitions": plan.repeats, "tokens": plan.tokens}
    return {"device": device(), "model": subject.name, "versions": shown, **sizes}


def measure(names: list[str], plan: Plan, out: Path) -> bool:
    """Run the stages. Each writes its file when it is done. Returns whether all cells have parity."""
    subject, equal = models.larger(plan.hidden), True
    pd.DataFrame([about(subject, plan)]).to_csv(out / "subjects.csv", index=False)
    for name in names:
        rows = []
        for row in STAGES[name](subject, plan):
            rows.append(row)
            logging.info(f"{name}: {', '.join(f'{key} {number(value)}' for key, value in row.items())}")
            equal = equal and row.get("parity", True)
        pd.DataFrame(rows).to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    return equal


def main() -> int:
    options = parser(__doc__, "bench.sh")
    options.add_argument("--quick", action="store_true", help="small settings; writes to a temporary directory")
    options.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME")
    options.add_argument(
        "--render", action="store_true", help="measure nothing; write the tables and the picture again"
    )
    options.add_argument("--out", type=Path, default=OUT, help="the folder of the results and a copy of the tables")
    args = options.parse_args()
    # One line a row, with its time.
    logging.basicConfig(format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    out: Path = Path(tempfile.mkdtemp(prefix="bench-")) if args.quick else args.out
    out.mkdir(parents=True, exist_ok=True)
    equal = args.render or measure(args.stages, QUICK if args.quick else Plan(), out)
    results, documents = tables.load(out), list(tables.DOCUMENTS)
    if out.resolve() != OUT:
        # Results in another folder have their tables there too.
        documents = [Path(shutil.copy(path, out)) for path in documents]
    for path in documents:
        path.write_text(tables.filled(path.read_text(), results))
    if "workloads" in results:
        tables.draw(results, out)
    logging.info(f"wrote the tables and the picture, and the results in {out}")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
