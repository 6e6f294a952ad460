"""Change single operators and numbers of the lines that the series adds, and see whether a test fails: tox -e mutation

python -m conformance.mutation run [--sample N] [--seed S] [--minutes M]    makes the mutants with cosmic-ray
python -m conformance.mutation ask                                          what it runs for each, in the mutated tree

A sample is drawn with a seed, so that two runs of one series ask the same. mutation.toml gives the reason for
each mutant that survives; one without a reason, or less than 90 % caught, ends it with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance import ROOT
from conformance.series.patches import PATCHES, checkout, commits

FOLDER = ROOT / ".mutation"
REASONS = Path(__file__).with_name("mutation.toml")
SAMPLE, SEED, MINUTES, SHARDS, LEAST = 60, 22, 60, 2, 0.9
# Seconds, several times what the patches' own tests and all tests take: a mutant that hangs counts as caught.
OWN_TIMEOUT, TIMEOUT = 300, 2400
# After the tests of the patches: what of the suite sees most of a module. The first name that it begins with counts.
DECODING = "contracts/c3_exits contracts/c4_parity contracts/c5_processors contracts/c8_one_forward"
SUITE = {
    "mlx_lm/models/cache.py": f"caches contracts/c1_snapshot contracts/c10_rows_are_alone {DECODING}",
    "mlx_lm/models/": "architectures contracts/c4_parity",
    "mlx_lm/server.py": "server contracts/c5_processors",
    "mlx_lm/draft/serving.py": "server contracts/c5_processors",
    "mlx_lm/draft/batch": "contracts/c10_rows_are_alone contracts/c7_no_regret server/test_batches.py",
    "mlx_lm/": f"contracts/c7_no_regret contracts/c10_rows_are_alone commands/test_command_line.py chat {DECODING}",
}
SELECT = "not selftest and not repository"
CONFIG = """\
[cosmic-ray]
module-path = {modules}
timeout = {timeout}.0
excluded-modules = []
test-command = "{python} -m conformance.mutation ask"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.git-filter]
branch = "{base}"
"""
CAUGHT, SURVIVED = "caught", "survived"


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    operator: str
    diff: str
    outcome: str

    @property
    def change(self) -> str:
        """The line as it was and as it is: what a reason names."""
        lines = [line[1:].strip() for line in self.diff.splitlines() if re.match(r"[-+](?![-+])", line)]
        return " -> ".join(lines)


def own_tests(module: str, tests: Path) -> tuple[list[str], list[str]]:
    """The tests of the patches that name the module, and the others."""
    found = {
        name for patch in PATCHES for name in re.findall(r"^\+\+\+ b/tests/(test_\w+\.py)$", patch.read_text(), re.M)
    }
    name = module.removesuffix(".py").replace("/", ".")
    short = name.rpartition(".")[2]
    there = sorted(name for name in found if (tests / name).exists())
    near = [test for test in there if short in test or name in (tests / test).read_text()]
    return near, [test for test in there if test not in near]


def folders(module: str) -> list[str]:
    """Of the suite, what is asked of a mutant of a module; all of it, if it is none."""
    of = next((names for start, names in SUITE.items() if module.startswith(start)), " ".join(SUITE.values()))
    return [f"conformance/{name}" for name in dict.fromkeys(of.split())]


def ask() -> int:
    """Run tests in the tree of this directory until one fails."""
    from conformance.series.upstream_tests import AS_ON_STOCK

    tree = Path.cwd()
    changed = subprocess.run(["git", "diff", "--name-only"], capture_output=True, text=True).stdout.strip()
    env = {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "MLX_DISABLE_COMPILE": "1"}
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    alone = [*pytest, "-c", os.devnull, "--rootdir", str(tree)]
    # Not a process for each file: imports take longer than most of them.
    for some in filter(None, own_tests(changed, tree / "tests")):
        line = [*alone, *(f"tests/{test}" for test in some), *AS_ON_STOCK]
        try:
            if subprocess.run(line, cwd=tree, env=env, timeout=OWN_TIMEOUT).returncode:
                return 1
        except subprocess.TimeoutExpired:
            return 1
    return subprocess.run([*pytest, "-m", SELECT, *folders(changed)], cwd=ROOT, env=env).returncode


def prepare(shard: int) -> Path:
    """A clone of the series to mutate, with the model that its tests load, and its session."""
    from conformance.series.upstream_tests import with_model

    tree = FOLDER / f"tree{shard}"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(checkout()), str(tree)], check=True)
    with_model(tree)
    base = commits()[0]
    listed = subprocess.run(
        ["git", "-C", tree, "diff", "--name-only", base, "HEAD", "--", "mlx_lm"], capture_output=True, text=True
    )
    modules = [name for name in listed.stdout.split() if name.endswith(".py")]
    config = CONFIG.format(modules=modules, timeout=TIMEOUT, python=sys.executable, base=base)
    (FOLDER / f"{shard}.toml").write_text(config)
    return tree


def cosmic_ray(shard: int, *command: str) -> subprocess.Popen[bytes]:
    names = {"CONFIG": str(FOLDER / f"{shard}.toml"), "SESSION": str(FOLDER / f"{shard}.sqlite")}
    line = [sys.executable, "-m", *(names.get(part, part) for part in command)]
    with (FOLDER / f"{shard}.log").open("ab") as log:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        tree = FOLDER / f"tree{shard}"
        return subprocess.Popen(line, cwd=tree, stdout=log, stderr=log, env=env, start_new_session=True)


def drawn(jobs: Iterable[str], sample: int, seed: int, shard: int) -> set[str]:
    """The jobs of one of the shards, of a sample that is the same each time."""
    chosen = random.Random(seed).sample(population := sorted(jobs), min(sample, len(population)))
    return set(chosen[shard::SHARDS])


def choose(shard: int, sample: int, seed: int) -> int:
    """Leave the mutants of a shard in its session; how many lines there are to change in all."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(FOLDER / f"{shard}.sqlite")) as session:
        # The ids of a session are drawn anew, what they stand for is not.
        jobs = {
            f"{m.module_path}:{m.start_pos}:{m.operator_name}:{m.occurrence}": item.job_id
            for item in session.pending_work_items
            for m in item.mutations
        }
        kept = {jobs[name] for name in drawn(jobs, sample, seed, shard)}
        left = [job for job in jobs.values() if job not in kept]
        session.set_multiple_results(left, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(jobs)


def read(shard: int) -> list[Mutant]:
    from cosmic_ray.work_db import WorkDB, use_db

    found = []
    with use_db(str(FOLDER / f"{shard}.sqlite"), WorkDB.Mode.open) as session:
        for item, result in session.completed_work_items:
            if result.test_outcome is not None:
                (m,) = item.mutations
                outcome = CAUGHT if result.is_killed else SURVIVED
                made = Mutant(str(m.module_path), m.start_pos[0], m.operator_name, result.diff or "", outcome)
                found.append(made)
    return found


def report(mutants: Sequence[Mutant], reasons: dict[str, str]) -> tuple[int, list[str]]:
    """The exit status and the lines."""
    alive = [one for one in mutants if one.outcome == SURVIVED]
    caught = len(mutants) - len(alive)
    lines = [f"{caught} of {len(mutants)} mutants are caught, {caught / max(len(mutants), 1):.0%}"]
    for one in alive:
        reason = reasons.get(one.change)
        lines += [
            f"{one.file}:{one.line}: {one.change}",
            f"    {reason or 'NO REASON: a test is missing, or a reason'}",
        ]
    enough = bool(mutants) and caught >= LEAST * len(mutants)
    return int(not enough or any(one.change not in reasons for one in alive)), lines


def run(sample: int, seed: int, minutes: int) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    end = time.monotonic() + 60 * minutes
    for shard in range(SHARDS):
        prepare(shard)
    for command in (
        ("cosmic_ray.cli", "init", "CONFIG", "SESSION"),
        ("cosmic_ray.tools.filters.git", "SESSION", "--config", "CONFIG"),
        # Tests that fail without a mutant catch all of them.
        ("cosmic_ray.cli", "baseline", "CONFIG"),
    ):
        if cosmic_ray(0, *command).wait():
            print(f"{' '.join(command)} failed: {FOLDER / '0.log'}", file=sys.stderr)
            return 2
    for shard in reversed(range(SHARDS)):
        if shard:
            shutil.copy(FOLDER / "0.sqlite", FOLDER / f"{shard}.sqlite")
        n = choose(shard, sample, seed)
    print(f"{min(sample, n)} of {n} mutants, seed {seed}", flush=True)
    runs = [cosmic_ray(shard, "cosmic_ray.cli", "exec", "CONFIG", "SESSION") for shard in range(SHARDS)]
    for one in runs:
        try:
            one.wait(max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            # With the tests that it runs.
            os.killpg(one.pid, signal.SIGTERM)
            one.wait()
            print(f"it did not end in {minutes} minutes", flush=True)
    reasons = tomllib.loads(REASONS.read_text())["reasons"] if REASONS.exists() else {}
    code, lines = report([one for shard in range(SHARDS) for one in read(shard)], reasons)
    print("\n".join(lines))
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "ask"])
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many mutants, default %(default)s")
    parser.add_argument("--seed", type=int, default=SEED, help="which ones, default %(default)s")
    parser.add_argument("--minutes", type=int, default=MINUTES, help="when it ends at the latest, default %(default)s")
    args = parser.parse_args()
    return ask() if args.command == "ask" else run(args.sample, args.seed, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
