"""Random programs on every kind of prompt cache, compared with lists of tokens, in any tree.

CONFORMANCE_PROFILE=full runs 2000 programs for each.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import mlx_lm.models
import pytest

from conformance.adapters import Adapters
from conformance.caches.kinds import BATCHES, KINDS, NAMES
from conformance.caches.machine import run
from conformance.caches.program import STEP
from conformance.oracle.findings import broken


@pytest.fixture
def asked(kind: str, about: Callable[..., None], uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind whose caches grow by few rows at a time."""
    # What a list holds, or the class without an option, may explain what is wrong with this one.
    about(kind, *[one for one in KINDS[kind].classes if one in KINDS and one != kind])
    for name in {name for each in KINDS.values() for name in each.classes}:
        if hasattr(NAMES.get(name), "step"):
            monkeypatch.setattr(NAMES[name], "step", STEP)
    return kind


@pytest.mark.asked("C4 blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(asked: str, adapter: Adapters) -> None:
    """What each token of a block sees is what single tokens see."""
    run(asked, adapter)


@pytest.mark.asked("C2 trim")
@pytest.mark.parametrize("kind", KINDS)
def test_trim(asked: str, adapter: Adapters) -> None:
    """What can_trim allows, trim drops exactly, and says so."""
    run(asked, adapter, "trim")


@pytest.mark.asked("C1 snapshot")
@pytest.mark.parametrize("kind", KINDS)
def test_snapshot(asked: str, adapter: Adapters) -> None:
    """A cache that is restored behaves like one that never saw the rest."""
    run(asked, adapter, "trim", "snapshot")


@pytest.mark.asked("C10 rows of a cache")
@pytest.mark.parametrize("kind", BATCHES)
def test_rows(asked: str, adapter: Adapters) -> None:
    """A row that stays in a batch sees what it saw, whatever joins and leaves."""
    run(asked, adapter, "rows")


# What looks like the cache of a layer, and what it is.
OTHERS = {
    "BlockState": "a state of ArraysCache",
    "CatchUpCache": "what a head holds, all but the first token, which conformance/heads/ asks",
    "LayerCache": "the cache of deepseek_v41, which test_models.py asks",
    "SteppedKeys": "the keys that RotatingKVCache gives of a draft",
    "TokenBuffer": "the tokens of a request",
    "LRUPromptCache": "the caches of prompts",
}
# A class with one of these methods may be a cache, whatever its name is.
METHODS = {"is_trimmable", "update_and_fetch", "make_mask"}


def test_every_class_is_in_the_table() -> None:
    """The source is read: some files end the process if a package is missing. A base class has an underscore."""
    known, unknown = {*OTHERS, *(name for kind in KINDS.values() for name in kind.classes)}, []
    for path in sorted(Path(mlx_lm.models.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in known:
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                bases = [*map(ast.unparse, node.bases)]
                named = any(one.endswith("Cache") for one in [node.name, *bases])
                if named or METHODS & methods or "mx.array" in bases:
                    unknown.append(f"{node.name} of models/{path.name}")
    if unknown:
        broken(f"no test asks {', '.join(unknown)}: add a row to KINDS in conformance/caches/kinds.py")
