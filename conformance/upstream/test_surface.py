"""The series has its public names."""

from __future__ import annotations

import importlib

import pytest

# Names that programs import.
STRATEGIES = (
    "DraftStrategy DraftStats BlockCosts EditStrategy NgramSimpleStrategy NgramModStrategy NgramModTable "
    "SuffixStrategy ModelDraftStrategy"
)
PUBLIC = {
    "mlx_lm.generate": f"prompt_lookup_generate_step speculative_generate_step {STRATEGIES}",
    "mlx_lm.draft": STRATEGIES,
    "mlx_lm.models.cache": "snapshot_prompt_cache restore_prompt_cache can_trim_prompt_cache trim_prompt_cache",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_there(module: str) -> None:
    missing = set(PUBLIC[module].split()) - vars(importlib.import_module(module)).keys()
    assert not missing, f"{module} has no {', '.join(sorted(missing))}"
