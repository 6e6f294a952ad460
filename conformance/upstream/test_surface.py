"""The suite knows every model file of the installed mlx-lm, and the series has its public names."""

from __future__ import annotations

import importlib

import mlx_lm
import pytest

from conformance.subjects.architectures import CONFIGS, UNRUNNABLE, model_files

# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}


def test_the_suite_knows_every_model() -> None:
    known, release = CONFIGS.keys() | UNRUNNABLE.keys(), mlx_lm.__version__.split("+")[0]
    unknown = sorted(set(model_files()) - known)
    assert not unknown, f"{', '.join(unknown)}: add a configuration to conformance/subjects/architectures.json"
    gone = {name for name, releases in SINCE.items() if release not in releases}
    stale = sorted(known - set(model_files()) - gone)
    assert not stale, f"mlx-lm {release} has no model file for the entries {', '.join(stale)}."


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
