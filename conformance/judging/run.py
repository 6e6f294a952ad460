"""Ask a tree: a run of pytest in the environment of the tree, which shows how far it is. It needs no mlx."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.judging.results import Results, read

# pytest's statuses of a run that asked: all passed, some failed, and nothing was selected.
ASKED = (0, 1, 5)
# The project's own options need plugins that these tests do not. A process that dies is replaced.
PYTEST = "pytest -o addopts= -m asked -q --no-header --no-summary --tb=no -p no:cacheprovider".split()
PYTEST += "--numprocesses=2 --dist=worksteal --max-worker-restart=999".split()
# The programs of a verdict are the same on another day.
SEED = os.environ.get("CONFORMANCE_SEED", "1")
# A test that takes longer, in seconds, is stopped.
LIMIT = 300.0
COVERAGE = """\
[run]
source_pkgs = mlx_lm
patch = subprocess, _exit
parallel = true
sigterm = true
data_file = {file}
[report]
include_namespace_packages = true
include = {include}
"""


class NotAsked(Exception):
    """A run ended before it asked anything. pytest says why."""


@dataclass(frozen=True)
class Run:
    python: Path
    # Where its files go, and the files of a package that is asked.
    folder: Path
    package: Path
    adapters: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limit: float = LIMIT

    def ask(self, tests: Sequence[str], coverage: bool = False) -> Results:
        """The results of these files and ids, or of other arguments of pytest."""
        report = self.folder / "asked.jsonl"
        command = [*PYTEST, *tests, f"--report={report}", f"--limit={self.limit}"]
        command += [f"--adapter={name}" for name in self.adapters]
        if coverage:
            command = ["coverage", "run", f"--rcfile={self._configured()}", "-m", *command]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "CONFORMANCE_SEED": SEED, **self.env}
        # On Linux each compiled function starts a C++ compiler.
        env |= {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
        done = subprocess.run([str(self.python), "-m", *command], cwd=ROOT, env=env)
        if done.returncode not in ASKED:
            raise NotAsked(f"pytest ends with {done.returncode}; the lines above say why")
        return read(report)[1]

    def ask_once(self, tests: Sequence[str], kept: Path) -> Results:
        """The results of these files. Those of the same package, suite and adapters are kept in a folder."""
        kept.mkdir(exist_ok=True)
        file = kept / f"{self.key(tests)}.jsonl"
        if not file.exists():
            self.ask(tests)
            # Another judge may write the same.
            os.replace(self.folder / "asked.jsonl", file)
        return read(file)[1]

    def key(self, tests: Sequence[str]) -> str:
        """A hash of all that the results depend on. Expectations and configurations of models are part of the suite."""
        others = sorted(path.name for path in self.package.parent.glob("mlx-*.dist-info"))
        digest = hashlib.sha256(repr([self.python, self.limit, SEED, *tests, *self.adapters, *others]).encode())
        suite = (path for path in (ROOT / "conformance").rglob("*") if path.suffix in (".py", ".txt", ".json"))
        files = {*self.package.rglob("*.py"), *suite, *map(Path, self.adapters)}
        for path in sorted(path for path in files if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def _configured(self, names: Sequence[str] = ()) -> Path:
        file, include = self.folder / "coverage.ini", ", ".join(f"*/mlx_lm/{name}" for name in names)
        file.write_text(COVERAGE.format(file=self.folder / "coverage", include=include))
        return file

    def covered(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What coverage.py says of these files of the package. It would take seconds for all of them."""
        # Of none coverage.py makes no report, and a file may be gone.
        if not (names := [name for name in names if (self.package / name).exists()]):
            return {}
        out, rc = self.folder / "coverage.json", f"--rcfile={self._configured(names)}"
        for line in (["combine", rc], ["json", rc, "-o", str(out), "--ignore-errors"]):
            subprocess.run([str(self.python), "-m", "coverage", *line], cwd=ROOT, check=True, capture_output=True)
        files = {(ROOT / name).resolve(): about for name, about in json.loads(out.read_text())["files"].items()}
        return {name: files[path] for name in names if (path := (self.package / name).resolve()) in files}
