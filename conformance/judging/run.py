"""Ask a tree: one run of pytest for each part, two at a time, in the environment of the tree. It needs no mlx."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.judging.results import BROKEN, NOT_FINISHED, Result, Results, asked_files, read

# pytest's statuses of a run that asked: all passed, some failed, and nothing was selected.
ASKED = (0, 1, 5)
# A test that takes longer, in seconds, is stopped; and how many of a part are, before the rest is left out.
LIMIT, STOPS = 300.0, 3
COVERAGE = """\
[run]
source_pkgs = mlx_lm
patch = subprocess
parallel = true
sigterm = true
data_file = {file}
[report]
include_namespace_packages = true
include = {include}
"""
# A part, what became of its tests so far, and how many there are.
Say = Callable[[str, Results, int], None]


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
    limit: float = LIMIT
    say: Say = lambda *_: None
    ended: threading.Event = field(default_factory=threading.Event)

    def ask(self, parts: Iterable[str], coverage: bool = False, select: Sequence[str] = ()) -> Results:
        """The results of these parts, or of the tests that are selected."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if coverage:
            # What an interrupted run has left did not run now.
            shutil.rmtree(self.folder / "coverage", ignore_errors=True)
            self._configured()
        found: Results = {}
        for _, results in self._each(list(parts), coverage, select):
            found |= results
        return found

    def _each(self, parts: list[str], coverage: bool, select: Sequence[str]) -> Iterator[tuple[str, Results]]:
        with ThreadPoolExecutor(2) as pool:
            try:
                yield from zip(parts, pool.map(lambda part: self._ask(part, coverage, select), parts), strict=True)
            except BaseException:
                # Ctrl-C, or a part that cannot be asked: the others are stopped too.
                self.ended.set()
                raise

    def _ask(self, part: str, coverage: bool, select: Sequence[str]) -> Results:
        """The results of a part. After a test that is stopped, or that ends its process, the rest is asked again."""
        found: Results = {}
        for _ in range(STOPS):
            said, collected = self._go_on(part, coverage, select, found)
            left = [test for test in collected if test not in found]
            if said is None or not left or self.ended.is_set():
                return found
            found[left[0]] = Result(*said, asked=collected[left[0]], notes={"about": left[0].partition("::")[2]})
        unasked = Result(NOT_FINISHED, f"not asked, after {STOPS} tests before it were stopped")
        return dict.fromkeys(collected, unasked) | found

    def _go_on(
        self, part: str, coverage: bool, select: Sequence[str], found: Results
    ) -> tuple[tuple[str, str] | None, dict[str, str]]:
        """Ask what was not asked yet. Returns what the test did that stopped the run, and the contract of each test."""
        out, log = self.folder / f"{part}.jsonl", self.folder / f"{part}.log"
        out.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", *(select or asked_files(part)), "-q", "-p", "no:cacheprovider"]
        # The project's options need plugins that the tests of a part do not.
        command += ["-o", "addopts=", "-m", "asked", f"--report={out}"]
        command += [f"--adapter={name}" for name in self.adapters]
        command += [f"--deselect={test}" for test in found]
        if coverage:
            command[2:3] = ["coverage", "run", f"--rcfile={self.folder / 'coverage.ini'}", "-m", "pytest"]
        env = os.environ | {"HF_HUB_OFFLINE": "1", **self.env}
        # On Linux each compiled function starts a C++ compiler.
        env |= {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
        with log.open("w") as said:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said, start_new_session=True)
            try:
                in_time = self._watch(process, part, out, found)
            finally:
                _stop(process)
        collected, results = read(out) if out.exists() else ({}, {})
        found |= results
        if in_time and process.returncode in ASKED:
            return None, collected
        if not collected and not in_time:
            raise NotAsked(f"pytest did not collect the tests of {part} in {self.limit:.0f} s")
        if not collected:
            told = log.read_text().strip().splitlines()
            errors = [line for line in told if line.startswith(("ERROR: ", "E  "))] or told
            raise NotAsked(errors[-1].removeprefix("ERROR: ").lstrip("E ") if errors else "pytest says nothing")
        if not in_time:
            return (NOT_FINISHED, f"it took more than {self.limit:.0f} s and was stopped"), collected
        return (BROKEN, f"the process ends with {process.returncode} in this test"), collected

    def _watch(self, process: subprocess.Popen[bytes], part: str, out: Path, found: Results) -> bool:
        """Wait for a run, and tell how far it is; False if one of its tests takes too long."""
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            if out.exists() and out.stat().st_size != size:
                size, since = out.stat().st_size, time.monotonic()
                collected, results = read(out)
                self.say(part, found | results, len(found) + len(collected))
            elif time.monotonic() - since > self.limit or self.ended.is_set():
                return False
        return True

    def ask_once(self, parts: Sequence[str], kept: Path) -> Results:
        """The results of these parts. Those of the same package, suite and adapters are kept in a folder."""
        files = {part: kept / f"{part}-{self.key()}.json" for part in parts}
        self.folder.mkdir(parents=True, exist_ok=True)
        kept.mkdir(parents=True, exist_ok=True)
        missing = [part for part, file in files.items() if not file.exists()]
        for part, results in self._each(missing, coverage=False, select=()):
            # Another judge may write the same.
            fresh = self.folder / f"{part}.json"
            fresh.write_text(json.dumps({test: asdict(one) for test, one in results.items()}))
            os.replace(fresh, files[part])
        found: Results = {}
        for file in files.values():
            found |= {test: Result(**one) for test, one in json.loads(file.read_text()).items()}
        return found

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
        return digest.hexdigest()[:16]

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


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a run and all that it started, which is nothing where it ended itself."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
