"""Run Python on the mlx-lm of a tree, in a process of its own: the tests of the tree, or a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conformance.doors.programs import run

# On Linux each compiled function would start a C++ compiler.
SETTINGS = {"MLX_DISABLE_COMPILE": "1"} if sys.platform == "linux" else {}
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
# In fewer columns pytest cuts off the name of the error.
PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "240"}
# The end of Python would wait for threads that are left behind, of a failed test or of a server.
RUN_TESTS = "import os, pytest, sys; os._exit(pytest.main(sys.argv[1:]))"


def in_tree(
    tree: Path, folder: Path, *arguments: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, on the mlx-lm of a tree."""
    env = {**SETTINGS, **PYTEST, "PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"}
    return run(arguments, cwd=folder, env=env, timeout=timeout)


def run_tests(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the mlx-lm of a tree, without the tests that fail on the stock release."""
    left_out = [f"--deselect=tests/{test}" for test in FAIL_ON_STOCK]
    return in_tree(tree, tree, "-c", RUN_TESTS, "-q", "-p", "no:cacheprovider", *arguments, *left_out)
