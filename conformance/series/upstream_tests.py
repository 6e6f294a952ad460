"""Upstream's own tests: which the suite runs, which fail by themselves, and how a tree does in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from conformance.series.trees import run_tests

FILES = ["test_prompt_cache", "test_generate", "test_server", "test_models", "test_gated_delta", "test_sample_utils"]
_UNTRAINED = "it asks a trained model to say TEST"
_METAL = "it calls a Metal kernel"
_CHUNKED = "0.32.0 only: it compares the chunked form of an SSD layer with single steps, which round in another way"
FLAT = "it compares sampled texts with and without a cached prompt, and random weights give a flat distribution"
# What fails on the stock release, offline, on a machine without Metal.
KNOWN = {
    "test_generate.py::TestGenerate::test_batch_continued_generation_ssm": _CHUNKED,
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings": _UNTRAINED,
    "test_generate.py::TestGenerate::test_stream_generate_input_embeddings_prefill": _UNTRAINED,
    "test_models.py::TestModels::test_bitnet": _METAL,
    "test_models.py::TestModels::test_gated_delta": _METAL,
    "test_models.py::TestModels::test_gated_delta_masked": _METAL,
    "test_server.py::TestServer::test_handle_completions": FLAT,
    "test_server.py::TestServer::test_handle_models": "it lists the models of the hub's cache, which is empty",
}


# A run without them.
AS_ON_STOCK = [f"--deselect=tests/{test}" for test in KNOWN]


def with_model(tree: Path) -> Path:
    """A tree with the stand-in for the model that its tests load."""
    # It imports mlx_lm, which must not be there when a tree's own is tested.
    from conformance.series.stand_in import write

    write(tree)
    return tree


def outcome(tree: Path, tests: Iterable[str]) -> tuple[int, set[str]]:
    """How many of a tree's tests pass, and those that fail."""
    done = run_tests(tree, "--tb=no", "-rfE", *(f"tests/{test}" for test in tests), to_the_end=True)
    assert done.returncode in (0, 1), done.said[-3000:]
    passed = re.search(r"(\d+) passed", done.said)
    failed = re.findall(r"^(?:FAILED|ERROR|SUBFAILED\S*) tests/(\S+)", done.said, re.MULTILINE)
    return int(passed[1]) if passed else 0, set(failed)


def related(tree: Path, changed: Iterable[str]) -> list[str]:
    """The tests that import a changed module by name; those of the models stand for every model file."""
    modules = {name.removesuffix(".py").replace("/", ".") for name in changed if name.startswith("mlx_lm/")}
    found = []
    for name in FILES:
        path = tree / "tests" / f"{name}.py"
        if not path.exists():
            continue
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        if modules & imported or (name == "test_models" and any(m.startswith("mlx_lm.models.") for m in modules)):
            found.append(f"{name}.py")
    return found
