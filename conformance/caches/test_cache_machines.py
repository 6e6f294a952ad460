"""Random programs on every prompt cache of one sequence, compared with its rows.

CONFORMANCE_PROFILE=full runs 2000 programs for each cache.
"""

from __future__ import annotations

import ast
from pathlib import Path

import mlx_lm.models
import pytest

from conformance.caches.batch_machine import BATCHES
from conformance.caches.layer_io import leaves
from conformance.caches.machines import CacheMachine, run, small_steps
from conformance.caches.worlds import KINDS

__all__ = ["small_steps"]


@pytest.mark.parametrize("kind", KINDS)
def test_machine(kind: str) -> None:
    run(CacheMachine, kind)


# They hold the prompt caches and the tokens of requests.
NOT_OF_A_LAYER = {"LRUPromptCache", "TokenBuffer", "_RingCache"}
# A class with one of these methods may be a cache, whatever its name is.
METHODS = {"is_trimmable", "update_and_fetch", "make_mask"}


def classes(folder: Path) -> set[str]:
    """Every class that may be the cache of a layer. The source is read: some files end the process if a package is
    missing. A name with an underscore is a base class."""
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                names = [node.name, *map(ast.unparse, node.bases)]
                if METHODS & methods or any(name.endswith("Cache") for name in names):
                    found.add(node.name)
    return found


def test_every_cache_class_is_run() -> None:
    held = [kind.padded(5, [0]) for kind in BATCHES.values()] + [kind(5).caches[0] for kind in KINDS.values()]
    run = {type(one).__name__ for one in [*held, *leaves(held)]}
    unknown = classes(Path(mlx_lm.models.__path__[0])) - run - NOT_OF_A_LAYER
    assert not unknown, "give it snap and restore in a patch, and add a kind that holds it to KINDS"


CACHES = {
    "a cache": "class PagedKVCache:\n    pass\n",
    "one by what it inherits": "from .cache import KVCache\n\nclass Paged(KVCache):\n    pass\n",
    "one by what it does": "def make():\n    class Paged:\n        def is_trimmable(self): return True\n",
}


@pytest.mark.planted
@pytest.mark.parametrize("source", CACHES.values(), ids=CACHES)
def test_a_new_cache_class_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "paged.py").write_text(f"{source}\nclass _Cache:\n    pass\n\nclass Model:\n    pass\n")
    (found,) = classes(tmp_path)
    assert found.startswith("Paged")
