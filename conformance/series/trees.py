"""Run the tests of a tree of mlx-lm, each run in its own process.

On Linux that process is a fork of one that has done the slow imports, but has not imported mlx or mlx-lm. On other
systems it is a new process.
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
# The libraries read these when they are imported. On Linux each compiled function would start a C++ compiler.
SETTINGS = {"HF_HUB_OFFLINE": "1"} | ({"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {})
OTHER_TREE = 99
STARTING = threading.Lock()


@dataclass
class Done:
    returncode: int
    said: str


class FirstFailure:
    """Ends a run at the first failure, also in a subtest, which pytest's -x does not."""

    failed = False

    def pytest_runtest_logreport(self, report: object) -> None:
        import pytest

        if getattr(report, "failed", False):
            self.failed = True
            print(getattr(report, "longreprtext", ""))
            pytest.exit("the first failure")


def run_tests(tree: Path, *arguments: str, to_the_end: bool = False) -> Done:
    """Run pytest on the mlx-lm of a tree, up to the first failure or to the end."""
    output = tree / "output.txt"
    # One run at a time: environment variables belong to the whole process.
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
    # In fewer columns pytest cuts off the name of the error.
    os.environ |= {"PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "240"}
    import pytest

    first = FirstFailure()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[] if to_the_end else [first])
    package = sys.modules.get("mlx_lm")
    if package is not None and not Path(str(package.__file__)).is_relative_to(tree):
        code = OTHER_TREE
    sys.stdout.flush()
    # sys.exit would wait for threads that a failed test left behind.
    os._exit(1 if first.failed else code)
