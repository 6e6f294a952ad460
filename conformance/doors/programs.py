"""Start Python programs that use the installed mlx-lm, as `python -m mlx_lm server` does.

On Linux a program is a fork of a process that has done the slow imports. mlx and mlx-lm it imports itself, after what a
planted fault changes. A cold one is a new process, which also ends as Python does.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
# What a program needs before mlx-lm, most of the time that it needs to start, and what the tests of a tree need.
CONTEXT.set_forkserver_preload(["pytest", "transformers.models.auto.tokenization_auto"])
LOCK = threading.Lock()
# coverage.py sets it where it follows new processes. It does not follow forks.
FOLLOWED = "COVERAGE_PROCESS_CONFIG"


class Forked:
    """A program in a fork."""

    def __init__(self, *what: Any) -> None:
        self._process = CONTEXT.Process(target=_run, args=what)
        # One at a time: environment variables belong to the whole process. The first import reads HF_HUB_OFFLINE.
        with LOCK, patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}):
            self._process.start()

    def poll(self, timeout: float | None = 0) -> int | None:
        """The exit status, or None if it does not end in time."""
        connection.wait([self._process.sentinel], timeout)
        # The status can be read once. Starting a process reads that of all others too.
        with LOCK:
            code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        if (code := self.poll(timeout)) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self._process.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Program = Forked | subprocess.Popen[bytes]


def program(
    arguments: Sequence[str],
    out: Path,
    *,
    err: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cold: bool = False,
) -> Program:
    """Start a program, in a fork unless it is ``cold``.

    Args:
        arguments: Those of Python: ``-m`` and a module, or ``-c`` and code, and what follows them.
        out: The file that it prints to.
        err: The file for its errors. The default is the same file.
        env: Environment variables, added to those of this process.
        cwd: The folder to run in. The default is that of this process.
    """
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})}
    if sys.platform == "linux" and not cold and FOLLOWED not in os.environ:
        return Forked(list(arguments), out, err, variables, cwd or Path.cwd())
    with out.open("wb") as write, (err or Path(os.devnull)).open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=errors if err else subprocess.STDOUT,
            env=variables,
            cwd=cwd,
            # Background processes of a shell ignore Ctrl-C, and their children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def run(arguments: Sequence[str], *, timeout: float | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with the arguments of ``program``, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = program(arguments, out, err=err, **more)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


def _run(arguments: list[str], out: Path, err: Path | None, env: dict[str, str], cwd: Path) -> None:
    """What Python does before and with its arguments."""
    _open(out, err, unbuffered="PYTHONUNBUFFERED" in env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Collections of garbage, which a server makes too, need not look at what is imported already.
    gc.freeze()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [str(cwd), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    option, what, *rest = arguments
    sys.argv = [option, *rest]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def _open(out: Path, err: Path | None, unbuffered: bool) -> None:
    """Open the standard streams, which are files of a fork's parent, as Python does at its start."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(out, flags), 1)
    os.dup2(1 if err is None else os.open(err, flags), 2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if unbuffered else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
