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

from conformance.testing.models.architectures import CONFIGS, build, make_cache

MODELS = ["mamba", "jamba", "rwkv7", "qwen3_next", "mamba2"]
# A prompt is as long as a block can be, so that a cache could keep what it takes to drop its end.
LAYERS, PROMPT, TRIES = 16, 64, 10


def peak(name: str, enough: float = 0) -> int:
    """The bytes that a prompt needs at most, beside the model and its states after one token.

    The threads of a CPU free what they used a little sooner or later, so the least of several tries counts. The first
    that needs no more than ``enough`` is the last one.
    """
    with patch.dict(CONFIGS, {name: CONFIGS[name] | {"num_hidden_layers": LAYERS}}):
        model, least = build(name), 0
    for _ in range(TRIES):
        caches, tokens = make_cache(model), mx.array([[(7 * i + 3) % 64 for i in range(1 + PROMPT)]])
        for part in (tokens[:, :1], tokens[:, 1:]):
            gc.collect()
            mx.clear_cache()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            mx.eval(model(part, cache=caches), [cache.state for cache in caches])
        needed: int = mx.get_peak_memory() - before
        least = min(least or needed, needed)
        if least <= enough:
            break
    return least


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(mlx_lm.__file__)
    print(json.dumps({name: peak(name) for name in MODELS}))
