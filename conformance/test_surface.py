"""Every model file of mlx-lm is known to the suite, and every known one that a CPU can run runs."""

from __future__ import annotations

import importlib

import mlx.core as mx
import mlx_lm
import pytest

from conformance.architectures import CONFIGS, NOT_MODELS, UNRUNNABLE, build, make_cache, model_files, runnable

# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}
PROMPT = 20
STEPS = 3
VOCAB = 64


def test_every_model_file_is_known() -> None:
    unknown = [name for name in model_files() if name not in CONFIGS and name not in UNRUNNABLE]
    assert not unknown, (
        f"mlx-lm {mlx_lm.__version__} has the model file(s) {', '.join(unknown)} without a configuration, "
        "so an entry belongs into conformance/architectures.json."
    )


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


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", runnable())
def test_a_prompt_and_single_steps_give_finite_logits(name: str) -> None:
    model = build(name)
    cache = make_cache(model)
    tokens = mx.random.randint(0, VOCAB, (1, PROMPT))
    for _ in range(1 + STEPS):
        logits = model(tokens, cache=cache)
        assert logits.shape == (*tokens.shape, VOCAB)
        assert mx.isfinite(logits).all().item()
        tokens = mx.argmax(logits[:, -1:], axis=-1)


PUBLIC = {
    "mlx_lm.generate": (
        "prompt_lookup_generate_step speculative_generate_step NgramSimpleStrategy NgramModStrategy NgramModTable "
        "SuffixStrategy ModelDraftStrategy ChainStrategy"
    ),
    "mlx_lm.models.cache": "snapshot_prompt_cache restore_prompt_cache rewind_prompt_cache can_rewind_prompt_cache",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_there(module: str) -> None:
    found = vars(importlib.import_module(module))
    assert [name for name in PUBLIC[module].split() if name not in found] == []
