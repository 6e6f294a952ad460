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
PYTEST = "pytest -o addopts= -o console_output_style=count -m asked -q --no-header --no-summary --tb=no".split()
PYTEST += "-p no:cacheprovider --numprocesses=2 --dist=worksteal --max-worker-restart=999".split()
# A test that takes longer, in seconds, is stopped.
LIMIT = 300.0
# The programs of a verdict are the same on another day.
SEED = os.environ.get("CONFORMANCE_SEED", "1")


class NotAsked(Exception):
    """A run ended before it asked anything. pytest says why."""


@dataclass(frozen=True)
class Asked:
    """A tree: its Python, the files of its package, a folder for what is written, and how it is asked."""

    python: Path
    folder: Path
    package: Path
    adapters: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limit: float = LIMIT

    @property
    def report(self) -> Path:
        return self.folder / "report.jsonl"

    def ask(self, tests: Sequence[str], coverage: bool = False) -> Results:
        """The results of these files and ids, or of other arguments of pytest."""
        command = [*PYTEST, *tests, f"--report={self.report}", f"--limit={self.limit}"]
        command += [f"--adapter={name}" for name in self.adapters]
        if coverage:
            command = ["coverage", "run", self._data, "-m", *command]
        # Somebody who waits sees each line of it, also in a file.
        env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "CONFORMANCE_SEED": SEED, **self.env}
        # On Linux each compiled function starts a C++ compiler.
        env |= {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
        done = subprocess.run([str(self.python), "-m", *command], cwd=ROOT, env=env)
        if done.returncode not in ASKED:
            raise NotAsked(f"pytest ends with {done.returncode}; the lines above say why")
        return read(self.report)[1]

    def ask_once(self, files: Sequence[str], kept: Path) -> Results:
        """The results of these files, which are kept in a folder."""
        kept.mkdir(exist_ok=True)
        if not (file := kept / f"{self.key(files)}.jsonl").exists():
            self.ask(files)
            self.report.replace(file)
        return read(file)[1]

    def key(self, asked: Sequence[str]) -> str:
        """A hash of all that the results depend on. Expectations and configurations of models are part of the suite."""
        others = sorted(path.name for path in self.package.parent.glob("mlx-*.dist-info"))
        digest = hashlib.sha256(repr([self.python, self.limit, SEED, asked, self.adapters, others]).encode())
        suite = (path for path in (ROOT / "conformance").rglob("*") if path.suffix in (".py", ".txt", ".json"))
        files = {*self.package.rglob("*.py"), *suite, *map(Path, self.adapters)}
        for path in sorted(path for path in files if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def _data(self) -> str:
        return f"--data-file={self.folder / 'coverage'}"

    def covered(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What coverage.py says of these files of the package. It would take seconds for all of them."""
        # Of none coverage.py makes no report, and a file may be gone.
        if not (names := [name for name in names if (self.package / name).exists()]):
            return {}
        out, include = self.folder / "coverage.json", ",".join(f"*/mlx_lm/{name}" for name in names)
        for line in (["combine"], ["json", "-o", str(out), f"--include={include}", "--ignore-errors"]):
            command = [str(self.python), "-m", "coverage", *line, self._data]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        files = {(ROOT / name).resolve(): about for name, about in json.loads(out.read_text())["files"].items()}
        return {name: files[path] for name in names if (path := (self.package / name).resolve()) in files}
