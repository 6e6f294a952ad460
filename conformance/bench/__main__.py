"""Make every number, table and picture of docs/benchmarks.md that times the fixture: scripts/bench.sh

scripts/bench.sh                                    # everything, at most 90 minutes on two cores
scripts/bench.sh --quick                            # at most 3 minutes: shows that it works, checks no times
scripts/bench.sh --model mlx-community/Qwen3-4B-4bit    # measure another model, keep the results of others
scripts/bench.sh --merge FOLDER ...                 # add results of other machines to the tables
scripts/bench.sh --render                           # measure nothing; write the tables and pictures again
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from conformance import ROOT
from conformance.bench import models, pictures, results, tables
from conformance.bench.plan import FULL, LEAST_REPEATS, QUICK, Plan, Progress
from conformance.bench.stages import stages_of
from conformance.testing.arguments import margin, parser

OUT = (ROOT / "docs" / "benchmarks").resolve()
# The longest answers of another model. The fixture's are shorter.
TOKENS = 128


def parsed() -> argparse.Namespace:
    options = parser(__doc__, "bench.sh")
    add = options.add_argument
    add("--quick", action="store_true", help="small settings; writes to a temporary directory")
    add("--model", help="another model: a directory or a Hugging Face repo")
    add("--draft-model", help="a draft model for --model")
    add("--draft-margin", type=margin, default=0.0, help="for --model: a number or 'auto', see docs/contracts.md")
    add("--stages", nargs="+", metavar="NAME", help="run only these stages")
    add("--repeats", type=int, help="repetitions of each run (default: 5 in a full run)")
    add("--merge", nargs="+", type=Path, default=[], metavar="FOLDER", help="add the results of other runs")
    add("--render", action="store_true", help="measure nothing; write the tables and pictures again")
    add("--out", type=Path, default=OUT, help="the folder of the results and a copy of the tables")
    args = options.parse_args()
    if args.repeats is not None and args.repeats < LEAST_REPEATS:
        options.error(f"--repeats must be at least {LEAST_REPEATS}: parity is checked on as many runs")
    for folder in args.merge:
        if not any(folder.glob("*.csv")):
            options.error(f"--merge: there are no results in {folder}")
    return args


def planned(args: argparse.Namespace) -> Plan:
    plan = QUICK if args.quick else FULL
    if args.model is not None and not args.quick:
        plan = replace(plan, tokens=TOKENS)
    return plan if args.repeats is None else replace(plan, repeats=args.repeats)


def measure(args: argparse.Namespace, out: Path, progress: Progress) -> bool:
    """Run the stages. Each writes its file when it is done. Returns whether all cells have parity."""
    plan = planned(args)
    if args.model is None:
        subject = models.larger(plan.hidden)
    else:
        subject = models.other(args.model, args.draft_model, args.draft_margin)
    todo, equal = stages_of(subject, plan, progress), True
    if unknown := set(args.stages or ()) - set(todo):
        sys.exit(f"error: no stage {', '.join(sorted(unknown))}; there are {', '.join(todo)}")
    results.add(out, "subjects", results.measured([{"model": subject.name} | results.about(plan)]))
    for name in args.stages or todo:
        progress(f"--- {name}")
        found = results.measured(list(todo[name]()))
        results.add(out, name, found)
        equal = equal and ("parity" not in found or bool(found.parity.all()))
    progress("--- done")
    return equal


def main() -> int:
    args, progress, equal = parsed(), Progress(), True
    documents = list(tables.DOCUMENTS)
    out: Path = Path(tempfile.mkdtemp(prefix="bench-")) if args.quick else args.out
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != OUT:
        # Results in another folder have their tables there too.
        documents = [Path(shutil.copy(path, out)) for path in documents]
    for folder in args.merge:
        for stage, rows in results.load(folder).items():
            results.add(out, stage, rows)
    if not (args.render or args.merge):
        equal = measure(args, out, progress)
    found = results.load(out)
    tables.write(documents, found)
    for path in (*documents, *pictures.draw(found, out)):
        progress(f"wrote {path}")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
