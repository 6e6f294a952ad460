"""Make every number, table and picture of docs/benchmarks.md: scripts/bench.sh

scripts/bench.sh                                    # everything, at most 90 minutes on two cores
scripts/bench.sh --quick                            # at most 3 minutes: shows that it works, checks no times
scripts/bench.sh --model mlx-community/Qwen3-4B-4bit    # measure another model, keep the results of others
scripts/bench.sh --merge FILE ...                   # add results of other machines to the tables
scripts/bench.sh --check                            # fail if a table differs from the results
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.bench import first, models, overhead, peers, report, results, rewinds, scale, serving, stages
from conformance.bench.cells import Row
from conformance.bench.models import Subject
from conformance.bench.page import page
from conformance.bench.plan import FULL, LEAST_REPEATS, QUICK, Plan, Progress
from conformance.bench.results import Results

Stage = Callable[[], Iterable[Row]]
FIXTURE = "the fixture"
OUT = (ROOT / "docs" / "benchmarks").resolve()


def fixture_stages(plan: Plan, progress: Progress) -> dict[str, Stage]:
    """All stages, with the model of this repository."""
    subject, small = models.larger(plan.hidden), models.shipped()
    return {
        "workloads": lambda: stages.workloads(subject, plan, progress),
        "peers": lambda: peers.measure(subject, plan, progress),
        "memory": lambda: stages.memory(subject, plan, progress),
        "blocks": lambda: blocks(subject, plan, progress),
        "overhead": lambda: overhead.measure(subject, plan, progress),
        "first": lambda: first.measure(subject, plan, progress),
        "types": lambda: stages.types(plan, progress),
        "rewinds": lambda: rewinds.measure(plan, progress),
        "drafters": lambda: scale.drafters(plan, progress),
        "sweep": lambda: stages.sweep(small, plan, progress),
        "serving": lambda: serving.measure(subject, plan, progress),
    }


def blocks(subject: Subject, plan: Plan, progress: Progress) -> Iterable[Row]:
    """Blocks at all context lengths in bf16, and at the first length in the other types."""
    yield from scale.blocks(subject, plan, progress)
    for weights in ("fp16", "fp32"):
        one = replace(plan, model_contexts=plan.model_contexts[:1])
        yield from scale.blocks(models.larger(plan.hidden, weights), one, progress)


def other_stages(subject: Subject, plan: Plan, progress: Progress) -> dict[str, Stage]:
    """The stages for another model."""
    return {
        "workloads": lambda: stages.workloads(subject, plan, progress),
        "memory": lambda: stages.memory(subject, plan, progress),
        "blocks": lambda: scale.blocks(subject, plan, progress),
        "overhead": lambda: overhead.measure(subject, plan, progress),
        "first": lambda: first.measure(subject, plan, progress),
        "drafters": lambda: scale.drafters(plan, progress),
        "sweep": lambda: stages.sweep(subject, plan, progress),
        "serving": lambda: serving.measure(subject, plan, progress),
    }


def run_stages(
    run: Results, todo: dict[str, Stage], out: Path, before: list[Results], progress: Progress
) -> list[Results]:
    """Run the stages. The results are saved after each stage, so that an interruption loses only one."""
    runs = before
    for name, stage in todo.items():
        progress(f"--- {name}")
        run[name] = list(stage())
        runs = results.merged(before, [run])
        results.save(out / "results.json", runs)
    progress("--- done")
    return runs


def render(runs: list[Results], out: Path, documents: list[Path], progress: Progress) -> None:
    report.write(documents, runs)
    # The reports of scripts/report.sh, also of other machines.
    reports = out / "reports.json"
    (out / "index.html").write_text(page(runs, json.loads(reports.read_text()) if reports.exists() else []))
    try:
        from conformance.bench import pictures
    except ImportError:
        progress("matplotlib is not installed: no pictures")
        return
    for path in pictures.draw(runs, out):
        progress(f"wrote {path}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small settings; writes to a temporary directory")
    parser.add_argument("--model", help="another model: a directory or a Hugging Face repo")
    parser.add_argument("--draft-model", help="a draft model for --model")
    parser.add_argument("--draft-margin", default=0.0, help="for --model: a number or 'auto', see docs/contracts.md")
    parser.add_argument("--stages", nargs="+", metavar="NAME", help="run only these stages")
    parser.add_argument("--repeats", type=int, help="repetitions of each run (default: 5 in a full run)")
    parser.add_argument(
        "--merge", nargs="+", type=Path, default=[], metavar="FILE", help="add the results.json of other runs"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing; write the tables and pictures again")
    parser.add_argument("--check", action="store_true", help="fail if a table differs from the results")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of results.json and a copy of the tables")
    args = parser.parse_args()
    if args.repeats is not None and args.repeats < LEAST_REPEATS:
        parser.error(f"--repeats must be at least {LEAST_REPEATS}: parity is checked on as many runs")
    return args


def chosen_stages(todo: dict[str, Stage], names: list[str] | None) -> dict[str, Stage]:
    if unknown := set(names or ()) - set(todo):
        sys.exit(f"error: no stage {', '.join(sorted(unknown))}; there are {', '.join(todo)}")
    return todo if names is None else {name: todo[name] for name in names}


def planned(args: argparse.Namespace) -> Plan:
    plan = QUICK if args.quick else FULL
    return plan if args.repeats is None else replace(plan, repeats=args.repeats)


def copies(documents: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copy(path, folder)) for path in documents]


def main() -> int:
    args, progress = parsed(), Progress()
    documents = list(report.DOCUMENTS)
    out: Path = args.out
    if args.check:
        wrong = report.stale(documents, results.load(out / "results.json"))
        for path in wrong:
            print(f"error: the tables of {path.name} are not those of results.json; run scripts/bench.sh --render")
        return len(wrong) > 0
    if args.quick:
        out = Path(tempfile.mkdtemp(prefix="bench-"))
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != OUT:
        # Results in another folder have their tables there too.
        documents = copies(documents, out)
    runs = results.load(out / "results.json")
    for path in args.merge:
        runs = results.merged(runs, results.load(path))
    if not (args.render or args.merge):
        runs = measured(args, runs, out, progress)
    results.save(out / "results.json", runs)
    render(runs, out, documents, progress)
    return any(not row["parity"] for stage in results.CELLS for row in results.rows(runs, stage))


def measured(args: argparse.Namespace, runs: list[Results], out: Path, progress: Progress) -> list[Results]:
    plan = planned(args)
    todo: dict[str, Stage]
    if args.model is None:
        name, todo = FIXTURE, fixture_stages(plan, progress)
    else:
        name = args.model
        margin: Any = args.draft_margin if args.draft_margin == "auto" else float(args.draft_margin)
        plan = replace(plan, tokens=max(plan.tokens, 128) if not args.quick else plan.tokens)
        todo = other_stages(models.other(name, args.draft_model, margin), plan, progress)
    run: Results = {"meta": results.meta(plan, name)}
    return run_stages(run, chosen_stages(todo, args.stages), out, runs, progress)


if __name__ == "__main__":
    sys.exit(main())
