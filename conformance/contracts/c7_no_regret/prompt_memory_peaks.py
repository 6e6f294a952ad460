"""The peak memory of a prompt in recurrent models without drafts, for the mlx-lm that is imported.

python -m conformance.contracts.c7_no_regret.prompt_memory_peaks
"""

from __future__ import annotations

import argparse
import gc
import json
from unittest.mock import patch

import mlx.core as mx
import mlx_lm

from conformance.subjects.architectures import CONFIGS, build, make_cache

MODELS = ["mamba", "jamba", "rwkv7", "qwen3_next", "mamba2"]
# A prompt is longer than the blocks whose end a cache can drop.
LAYERS, PROMPT = 16, 64


def peak(name: str) -> int:
    """The bytes that a prompt needs at most, beside the model and its states after one token."""
    with patch.dict(CONFIGS, {name: CONFIGS[name] | {"num_hidden_layers": LAYERS}}):
        model = build(name)
    caches, tokens = make_cache(model), mx.array([[(7 * i + 3) % 64 for i in range(1 + PROMPT)]])
    for part in (tokens[:, :1], tokens[:, 1:]):
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(model(part, cache=caches), [cache.state for cache in caches])
    needed: int = mx.get_peak_memory() - before
    return needed


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(mlx_lm.__file__)
    print(json.dumps({name: min(peak(name) for _ in range(3)) for name in MODELS}))
