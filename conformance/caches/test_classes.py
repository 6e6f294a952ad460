"""No class of a cache, and no step of a program, is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx_lm.models
import pytest

from conformance.adapters import Adapters, load
from conformance.caches.kinds import KINDS, unknown_classes
from conformance.caches.program import Program
from conformance.oracle.findings import broken


def test_every_class_is_in_the_table() -> None:
    if unknown := unknown_classes(Path(mlx_lm.models.__path__[0])):
        broken(f"no test asks {', '.join(unknown)}: add a row to KINDS in conformance/caches/kinds.py")


CLASSES = {
    "a cache": "class PagedKVCache:\n    pass\n",
    "one by what it inherits": "from .cache import KVCache\n\nclass Paged(KVCache):\n    pass\n",
    "one by what it does": "def make():\n    class Paged:\n        def is_trimmable(self): return True\n",
    "a part of one": "class PagedState(mx.array):\n    pass\n",
}


@pytest.mark.planted
@pytest.mark.parametrize("source", CLASSES.values(), ids=CLASSES)
def test_a_new_class_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "paged.py").write_text(f"{source}\nclass _Cache:\n    pass\n\nclass Model:\n    pass\n")
    (found,) = unknown_classes(tmp_path)
    assert found.startswith("Paged")
    assert found.endswith(" of models/paged.py")


# Lines of a program on each kind whose layers are fed in their own way.
STEPS = {
    "BatchKVCache": [
        "feed(caches, [1, 2], [1001, 1002])",
        "trim(caches, 1)",
        "[c.filter(mx.array([1])) for c in caches]",
    ],
    "ChunkedKVCache": ["feed(caches, [1, 2])", "trim(caches, 1)", "offsets(caches)"],
    "ArraysCache": ["feed(caches, [1, 2])", "look(caches, [3])"],
    "LayerCache": ["feed(caches, [1, 2, 3, 4, 5])", "look(caches, [6])"],
}


@pytest.mark.selftest
@pytest.mark.parametrize("name", STEPS)
def test_the_lines_of_a_program_run_without_the_suite(name: str, tmp_path: Path) -> None:
    program = Program(KINDS[name], Adapters([load("stock")]))
    program.do(KINDS[name].written(4, [0, 2]), "caches")
    program.do("snapshot(caches)", "taken1")
    for step in STEPS[name]:
        program.do(step)
    program.do("restore(caches, taken1)")
    program.do(STEPS[name][0])
    text = program.text("it is wrong")
    assert "conformance" not in text
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[["), done.stdout
