"""Ask a tree: one run of pytest for each part, two at a time, in the environment of the tree. It needs no mlx."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.judging.results import TEST, Results, file_of, read

# pytest's statuses of a run that asked: all passed, and some failed.
ASKED = (0, 1)
COVERAGE = """\
[run]
source_pkgs = mlx_lm
patch = subprocess
parallel = true
data_file = {file}
[report]
include_namespace_packages = true
include = {include}
"""


class NotAsked(Exception):
    """A run ended before it asked anything. The message says why."""


@dataclass(frozen=True)
class Run:
    python: Path
    # Where its files go, and the files of a package that is asked.
    folder: Path
    package: Path
    adapters: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def ask(self, parts: Iterable[str], coverage: bool = False, select: Sequence[str] = ()) -> Results:
        """The results of these parts, or of the tests of them that are selected."""
        found: Results = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        if coverage:
            # What an interrupted run has left did not run now.
            shutil.rmtree(self.folder / "coverage", ignore_errors=True)
        with ThreadPoolExecutor(2) as pool:
            for results in pool.map(lambda part: self._ask(part, coverage, select), parts):
                found |= results
        return found

    def _ask(self, part: str, coverage: bool, select: Sequence[str]) -> Results:
        out = self.folder / f"{part}.xml"
        out.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", *(select or [file_of(part)]), "-q", "-p", "no:cacheprovider"]
        # The project's options need plugins that the tests of a part do not.
        command += ["-o", "addopts=", "-o", "junit_family=xunit1"]
        command += [f"--junit-xml={out}"]
        command += [f"--adapter={name}" for name in self.adapters]
        if coverage:
            command[2:3] = ["coverage", "run", f"--rcfile={self._configured()}", "-m", "pytest"]
        env = os.environ | {"HF_HUB_OFFLINE": "1", **self.env}
        # On Linux each compiled function starts a C++ compiler.
        env |= {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode not in ASKED or not out.exists():
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise NotAsked(said[-1].removeprefix("ERROR: ") if said else "pytest ended without a message")
        return self._read(part)

    def ask_once(self, parts: Sequence[str]) -> Results:
        """The results of these parts. Those of the same package, suite and adapters are kept."""
        key, stamps = self.key(), {part: self.folder / f"{part}.key" for part in parts}
        missing = [part for part, stamp in stamps.items() if not stamp.exists() or stamp.read_text() != key]
        for part in missing:
            stamps[part].unlink(missing_ok=True)
        self.ask(missing)
        for part in missing:
            stamps[part].write_text(key)
        return {test: result for part in parts for test, result in self._read(part).items()}

    def _read(self, part: str) -> Results:
        # A stale expectation of a release is no test of a tree.
        return {test: result for test, result in read(self.folder / f"{part}.xml").items() if TEST in test}

    def key(self) -> str:
        """A hash of all that the results depend on."""
        digest = hashlib.sha256(repr([str(self.python), *self.adapters]).encode())
        others = self.package.parent.glob("mlx-*.dist-info")
        digest.update(repr(sorted(path.name for path in others)).encode())
        # The expectations and the configurations of models are part of the suite.
        suite = (path for path in (ROOT / "conformance").rglob("*") if path.suffix in (".py", ".txt", ".json"))
        files = [*self.package.rglob("*.py"), *suite, *map(Path, self.adapters)]
        for path in sorted(path for path in files if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def _configured(self, names: Iterable[str] = ()) -> Path:
        file, data = self.folder / "coverage.ini", self.folder / "coverage"
        include = ", ".join(f"*/mlx_lm/{name}" for name in names)
        file.write_text(COVERAGE.format(file=data / "data", include=include))
        data.mkdir(exist_ok=True)
        return file

    def covered(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What coverage.py says of these files of the package. It would take seconds for all of them."""
        if not names:
            return {}
        out, rc = self.folder / "coverage.json", f"--rcfile={self._configured(names)}"
        for line in (["combine", rc], ["json", rc, "-o", str(out), "--ignore-errors"]):
            subprocess.run([str(self.python), "-m", "coverage", *line], cwd=ROOT, check=True, capture_output=True)
        files = {(ROOT / name).resolve(): about for name, about in json.loads(out.read_text())["files"].items()}
        return {name: files[path] for name in names if (path := (self.package / name).resolve()) in files}
