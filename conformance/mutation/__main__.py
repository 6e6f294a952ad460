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
TREE, SESSION, CONFIGURED, LOG = (FOLDER / name for name in ("tree", "session.sqlite", "config.toml", "log"))
SAMPLE, SEED, MINUTES, LEAST = 60, 22, 60, 0.9
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
    diff: str
    outcome: str

    @property
    def change(self) -> str:
        """The line as it was and as it is: what a reason names."""
        lines = [line[1:].strip() for line in self.diff.splitlines() if re.match(r"[-+](?![-+])", line)]
        return " -> ".join(lines)


def own_tests(module: str, tests: Path) -> list[str]:
    """The tests of the patches, those that name the module first."""
    named = {
        name for patch in PATCHES for name in re.findall(r"^\+\+\+ b/tests/(test_\w+\.py)$", patch.read_text(), re.M)
    }
    name = module.removesuffix(".py").replace("/", ".")
    there = {path.name: path.read_text() for path in sorted(tests.glob("test_*.py")) if path.name in named}
    return sorted(there, key=lambda test: name.rpartition(".")[2] not in test and name not in there[test])


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
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--numprocesses=2"]
    own = [f"tests/{test}" for test in own_tests(changed, tree / "tests")]
    alone = [*pytest, "-c", os.devnull, "--rootdir", str(tree), *own, *AS_ON_STOCK]
    try:
        if subprocess.run(alone, cwd=tree, env=env, timeout=OWN_TIMEOUT).returncode:
            return 1
    except subprocess.TimeoutExpired:
        return 1
    return subprocess.run([*pytest, "-m", SELECT, *folders(changed)], cwd=ROOT, env=env).returncode


def prepare() -> None:
    """A clone of the series to mutate, with the model that its tests load."""
    from conformance.series.upstream_tests import with_model

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--shared", str(checkout()), str(TREE)], check=True)
    with_model(TREE)
    base = commits()[0]
    diff = ["git", "-C", str(TREE), "diff", "--name-only", base, "HEAD", "--", "mlx_lm"]
    listed = subprocess.run(diff, capture_output=True, text=True, check=True).stdout.split()
    modules = [name for name in listed if name.endswith(".py")]
    CONFIGURED.write_text(CONFIG.format(modules=modules, timeout=TIMEOUT, python=sys.executable, base=base))


def cosmic_ray(*command: str | Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with LOG.open("ab") as log:
        line = [sys.executable, "-m", *command]
        return subprocess.Popen(line, cwd=TREE, stdout=log, stderr=log, env=env, start_new_session=True)


def drawn(jobs: Iterable[str], sample: int, seed: int) -> set[str]:
    """A sample of the jobs that is the same each time."""
    population = sorted(jobs)
    return set(random.Random(seed).sample(population, min(sample, len(population))))


def choose(sample: int, seed: int) -> int:
    """Leave a sample of the mutants in the session; how many there are in all."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(SESSION)) as session:
        # The ids of a session are drawn anew, what they stand for is not.
        jobs = {
            f"{m.module_path}:{m.start_pos}:{m.operator_name}:{m.occurrence}": item.job_id
            for item in session.pending_work_items
            for m in item.mutations
        }
        kept = drawn(jobs, sample, seed)
        left = [job for name, job in jobs.items() if name not in kept]
        session.set_multiple_results(left, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(jobs)


def read() -> list[Mutant]:
    from cosmic_ray.work_db import WorkDB, use_db

    with use_db(str(SESSION), WorkDB.Mode.open) as session:
        return [
            Mutant(str(m.module_path), m.start_pos[0], result.diff or "", CAUGHT if result.is_killed else SURVIVED)
            for item, result in session.completed_work_items
            if result.test_outcome is not None
            for m in item.mutations
        ]


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
    end = time.monotonic() + 60 * minutes
    prepare()
    for command in (
        ("cosmic_ray.cli", "init", CONFIGURED, SESSION),
        ("cosmic_ray.tools.filters.git", SESSION, "--config", CONFIGURED),
        # Tests that fail without a mutant catch all of them.
        ("cosmic_ray.cli", "baseline", CONFIGURED),
    ):
        if cosmic_ray(*command).wait():
            print(f"{' '.join(map(str, command))} failed: {LOG}", file=sys.stderr)
            return 2
    n = choose(sample, seed)
    print(f"{min(sample, n)} of {n} mutants, seed {seed}", flush=True)
    mutating = cosmic_ray("cosmic_ray.cli", "exec", CONFIGURED, SESSION)
    try:
        mutating.wait(max(end - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        # With the tests that it runs.
        os.killpg(mutating.pid, signal.SIGTERM)
        mutating.wait()
        print(f"it did not end in {minutes} minutes", flush=True)
    code, lines = report(read(), tomllib.loads(REASONS.read_text())["reasons"])
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
