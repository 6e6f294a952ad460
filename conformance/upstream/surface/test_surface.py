"""The suite knows every model file of the installed mlx-lm, and the series has its public names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import mlx_lm
import pytest

from conformance.subjects.architectures import (
    CONFIGS,
    NOT_MODELS,
    UNRUNNABLE,
    model_files,
)

# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}


def unknown(models: Iterable[str]) -> list[str]:
    return [name for name in models if name not in CONFIGS and name not in UNRUNNABLE]


def test_the_suite_knows_every_model() -> None:
    assert not unknown(model_files()), "add a configuration to conformance/subjects/architectures.json"


@pytest.mark.planted
def test_a_new_model_is_found() -> None:
    assert unknown([*model_files(), "new"]) == ["new"]


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
