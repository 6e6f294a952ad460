"""Run something on the mlx-lm of a tree, in its own process: its tests, or a function.

On Linux that process is a fork of one that has done the slow imports, but has not imported mlx or mlx-lm. On other
systems it is a new process.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.doors.programs import exit_code, start

# On Linux each compiled function would start a C++ compiler.
SETTINGS = {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
OTHER_TREE = 99
METAL = ("bitnet", "gated_delta", "gated_delta_masked")
# Upstream's tests that fail on the stock release, offline, on a machine without Metal.
FAIL_ON_STOCK = (
    # They ask a trained model to say TEST.
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings",
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings_prefill",
    # They call a Metal kernel, which a Mac has.
    *(f"test_models.py::TestModels::test_{name}" for name in METAL if sys.platform != "darwin"),
    # It compares sampled texts with and without a cached prompt, and random weights give a flat distribution.
    "test_server.py::TestServer::test_handle_completions",
    # It lists the models of the hub's cache, which is empty.
    "test_server.py::TestServer::test_handle_models",
)


@dataclass
class Done:
    returncode: int
    said: str


def in_tree(tree: Path, folder: Path, call: Callable[..., int], *arguments: Any, timeout: float | None = None) -> Done:
    """Call a function in a folder, on the mlx-lm of a tree. The function returns the exit status."""
    process = start(_child, tree, folder, call, arguments, **SETTINGS)
    code = exit_code(process, timeout)
    if code is None:
        process.kill()
        code = exit_code(process)
    assert code is not None
    assert code != OTHER_TREE, "it ran on another mlx-lm"
    return Done(code, (folder / "output.txt").read_text(errors="replace"))


def _child(tree: Path, folder: Path, call: Callable[..., int], arguments: tuple[Any, ...]) -> None:
    with (folder / "output.txt").open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if "mlx_lm" in sys.modules:
        sys.exit(OTHER_TREE)
    # Collections of garbage, which a server makes too, need not look at what is imported already.
    gc.freeze()
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(tree)]
    # Runs that share the tree compile it once.
    sys.dont_write_bytecode = False
    code = call(*arguments)
    package = sys.modules.get("mlx_lm")
    if package is not None and not Path(str(package.__file__)).is_relative_to(tree):
        code = OTHER_TREE
    sys.stdout.flush()
    # sys.exit would wait for threads that are left behind, of a failed test or of a server.
    os._exit(code)


def run_tests(tree: Path, *arguments: str) -> Done:
    """Run pytest on the mlx-lm of a tree, without the tests that fail on the stock release."""
    left_out = [f"--deselect=tests/{test}" for test in FAIL_ON_STOCK]
    return in_tree(tree, tree, _pytest, str(tree), (*arguments, *left_out))


def _pytest(tree: str, arguments: tuple[str, ...]) -> int:
    # In fewer columns pytest cuts off the name of the error.
    os.environ |= {"PYTHONPATH": tree, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "240"}
    import pytest

    return int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments]))
