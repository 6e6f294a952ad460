"""Run the tests of a tree of mlx-lm, each time in a process of its own.

On Linux such a process is forked from one that has done the slow imports, but none of mlx or mlx-lm. Elsewhere it
starts from nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
CONTEXT.set_forkserver_preload(["conformance.series.slow_imports"])
# What the libraries read when they are imported. On Linux each compiled function would start a C++ compiler.
SETTINGS = {"HF_HUB_OFFLINE": "1"} | ({"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {})
OTHER_TREE = 99
STARTING = threading.Lock()


@dataclass
class Done:
    returncode: int
    said: str


class FirstFailure:
    """Ends a run at the first failure, as pytest's -x does but for subtests."""

    failed = False

    def pytest_runtest_logreport(self, report: object) -> None:
        import pytest

        if getattr(report, "failed", False):
            self.failed = True
            print(getattr(report, "longreprtext", ""))
            pytest.exit("the first failure")


def run_tests(tree: Path, *arguments: str, to_the_end: bool = False) -> Done:
    """Run pytest in a tree, on the mlx-lm that is there, up to the first failure or to the end."""
    output = tree / "output.txt"
    # One at a time: the variables are those of the whole process.
    with STARTING, patch.dict(os.environ, SETTINGS):
        process = CONTEXT.Process(target=_child, args=(tree, arguments, to_the_end, output))
        process.start()
    process.join()
    said = output.read_text(errors="replace")
    assert process.exitcode is not None
    assert process.exitcode != OTHER_TREE, "the tests ran on another mlx-lm"
    return Done(process.exitcode, said)


def _child(tree: Path, arguments: tuple[str, ...], to_the_end: bool, output: Path) -> None:
    with output.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if "mlx_lm" in sys.modules:
        sys.exit(OTHER_TREE)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ |= {"PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    import pytest

    first = FirstFailure()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[] if to_the_end else [first])
    package = sys.modules.get("mlx_lm")
    if package is not None and not Path(str(package.__file__)).is_relative_to(tree):
        code = OTHER_TREE
    sys.stdout.flush()
    # Not sys.exit: it waits for the threads that a test which fails has left.
    os._exit(1 if first.failed else code)
