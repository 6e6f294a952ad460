"""Upstream's own tests: which of them the suite runs, which fail on the stock release, and the result of a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from conformance.series.trees import run_tests

FILES = ["test_prompt_cache", "test_generate", "test_server", "test_models", "test_gated_delta", "test_sample_utils"]
_UNTRAINED = "it asks a trained model to say TEST"
_METAL = "it calls a Metal kernel"
FLAT = "it compares sampled texts with and without a cached prompt, and random weights give a flat distribution"
# Tests that fail on the stock release, offline, on a machine without Metal.
KNOWN = {
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings": _UNTRAINED,
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings_prefill": _UNTRAINED,
    "test_models.py::TestModels::test_bitnet": _METAL,
    "test_models.py::TestModels::test_gated_delta": _METAL,
    "test_models.py::TestModels::test_gated_delta_masked": _METAL,
    "test_server.py::TestServer::test_handle_completions": FLAT,
    "test_server.py::TestServer::test_handle_models": "it lists the models of the hub's cache, which is empty",
}


# pytest arguments that leave them out.
AS_ON_STOCK = [f"--deselect=tests/{test}" for test in KNOWN]


def outcome(tree: Path, tests: Iterable[str]) -> tuple[int, set[str]]:
    """The number of tests of a tree that pass, and the names of those that fail."""
    done = run_tests(tree, "--tb=no", "-rfE", *(f"tests/{test}" for test in tests))
    assert done.returncode in (0, 1), done.said[-3000:]
    passed = re.search(r"(\d+) passed", done.said)
    failed = re.findall(r"^(?:FAILED|ERROR|SUBFAILED\S*) tests/(\S+)", done.said, re.MULTILINE)
    return int(passed[1]) if passed else 0, set(failed)


def related(tree: Path, changed: Iterable[str]) -> list[str]:
    """The tests that import a changed module by name. For any model file these are the tests of the models."""
    modules = [name.removesuffix(".py").replace("/", ".") for name in changed if name.startswith("mlx_lm/")]
    found = []
    for name in FILES:
        path = tree / "tests" / f"{name}.py"
        text = path.read_text() if path.exists() else ""
        for package, _, module in (module.rpartition(".") for module in modules):
            imported = rf"(?m)^ *(from|import) {re.escape(package)}(\.| import .*\b){module}\b"
            if re.search(imported, text) or (text and name == "test_models" and package == "mlx_lm.models"):
                found.append(f"{name}.py")
                break
    return found
