"""Upstream's own tests: which of them the suite runs, which fail on the stock release, and the result of a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from conformance.series.trees import run_tests

FILES = ["test_prompt_cache", "test_generate", "test_server", "test_models", "test_gated_delta", "test_sample_utils"]
# Random weights give a flat distribution, and this compares sampled texts with and without a cached prompt.
FLAT = "test_server.py::TestServer::test_handle_completions"
# Tests that fail on the stock release, offline, on a machine without Metal.
KNOWN = (
    FLAT,
    # The hub's cache, whose models it lists, is empty.
    "test_server.py::TestServer::test_handle_models",
    # They ask a trained model to say TEST.
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings",
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings_prefill",
    # They call a Metal kernel.
    "test_models.py::TestModels::test_bitnet",
    "test_models.py::TestModels::test_gated_delta",
    "test_models.py::TestModels::test_gated_delta_masked",
)
# pytest arguments that leave them out.
AS_ON_STOCK = [f"--deselect=tests/{test}" for test in KNOWN]


def outcome(tree: Path, tests: Iterable[str]) -> tuple[int, set[str]]:
    """The number of tests of a tree that pass, and the names of those that fail."""
    done = run_tests(tree, "--tb=no", "-rfE", *(f"tests/{test}" for test in tests))
    assert done.returncode in (0, 1), done.said[-3000:]
    passed = re.search(r"(\d+) passed", done.said)
    failed = re.findall(r"^(?:FAILED|ERROR|SUBFAILED\S*) tests/(\S+)", done.said, re.MULTILINE)
    return int(passed[1]) if passed else 0, set(failed)
