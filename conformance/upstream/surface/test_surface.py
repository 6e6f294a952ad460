"""The suite knows every model file and cache class of the installed mlx-lm, and what is new in another tree.

python -m conformance.series.surface TREE OLD compares source trees that are not installed.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import mlx_lm
import pytest

from conformance.series.surface import SINCE, complaints, gone
from conformance.testing.models.architectures import (
    CONFIGS,
    NOT_MODELS,
    UNRUNNABLE,
    model_files,
)

TREE = Path(mlx_lm.__file__).parent.parent


def test_the_suite_knows_all_of_it() -> None:
    """If a release has something new, the error says what to record, and where."""
    assert complaints(TREE) == []


def test_no_entry_is_stale() -> None:
    gone = {name for name, releases in SINCE.items() if mlx_lm.__version__.split("+")[0] not in releases}
    stale = sorted((CONFIGS.keys() | UNRUNNABLE.keys()) - set(model_files()) - gone)
    assert not stale, f"mlx-lm {mlx_lm.__version__} has no model file for the entries {', '.join(stale)}."


def test_the_shared_parts_are_no_models() -> None:
    assert {"base", "cache", "rope_utils", "switch_layers"} <= NOT_MODELS
    assert not NOT_MODELS & (CONFIGS.keys() | UNRUNNABLE.keys())


def test_the_entries_are_sorted_by_name() -> None:
    assert list(CONFIGS) == sorted(CONFIGS)
    assert list(UNRUNNABLE) == sorted(UNRUNNABLE)


PUBLIC = {
    "mlx_lm.generate": (
        "prompt_lookup_generate_step speculative_generate_step DraftStrategy DraftStats BlockCosts "
        "EditStrategy NgramSimpleStrategy NgramModStrategy NgramModTable SuffixStrategy ModelDraftStrategy"
    ),
    "mlx_lm.draft": (
        "DraftStrategy DraftStats BlockCosts EditStrategy NgramSimpleStrategy NgramModStrategy "
        "NgramModTable SuffixStrategy ModelDraftStrategy"
    ),
    "mlx_lm.models.cache": "snapshot_prompt_cache restore_prompt_cache can_trim_prompt_cache trim_prompt_cache",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_there(module: str) -> None:
    found = vars(importlib.import_module(module))
    assert [name for name in PUBLIC[module].split() if name not in found] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the installed package."""
    shutil.copytree(TREE / "mlx_lm", tmp_path / "mlx_lm", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


CACHES = {
    "a cache": "class PagedKVCache:\n    pass\n",
    "one by what it inherits": "from .cache import KVCache\n\nclass PagedKVCache(KVCache):\n    pass\n",
    "one by what it does": "def make():\n    class Paged:\n        def is_trimmable(self): return True\n",
}


@pytest.mark.planted
@pytest.mark.parametrize("source", CACHES.values(), ids=CACHES)
def test_a_new_cache_class_is_found(tree: Path, source: str) -> None:
    (tree / "mlx_lm" / "models" / "paged.py").write_text(source)
    [sentence] = complaints(tree)
    assert sentence.startswith("mlx_lm/models/paged.py has the cache class Paged")
    assert "KINDS of conformance/testing/caches/machines.py" in sentence


@pytest.mark.planted
def test_every_other_change_is_found(tree: Path) -> None:
    (tree / "mlx_lm" / "models" / "new.py").write_text("class ModelArgs: pass\nclass Model: pass\n")
    generate = tree / "mlx_lm" / "generate.py"
    source = generate.read_text().replace("def stream_generate(", "def stream_generate(\n    here,")
    generate.write_text(f"{source}\nparser.add_argument('-z', '--new', default='-y')\n")
    found = "\n".join(complaints(tree, TREE))
    for part in (
        "models/new.py is a model without",
        "has the options --new, -z, which are new",
        "takes (here, model, tokenizer,",
    ):
        assert part in found
    assert len(found.splitlines()) == 3


@pytest.mark.planted
def test_what_is_gone_is_found(tree: Path) -> None:
    (tree / "mlx_lm" / "models" / "llama.py").unlink()
    cache = tree / "mlx_lm" / "models" / "cache.py"
    cache.write_text(cache.read_text().replace("class ChunkedKVCache(", "class _ChunkedKVCache("))
    said = "\n".join(gone(tree, TREE))
    assert "the cache classes ChunkedKVCache." in said
    assert "the models llama." in said
    assert " ChunkedKVCache.update_and_fetch" in said
