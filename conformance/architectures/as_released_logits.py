"""The logits of every architecture without drafts, for the mlx-lm that is imported.

python -m conformance.architectures.as_released_logits FILE
"""

from __future__ import annotations

import argparse

import mlx.core as mx
import mlx_lm

from conformance.testing.models.architectures import build, make_cache, runnable

# Longer than any block of drafts, so that it is a chunk of a prompt.
PROMPT, STEPS, VOCAB = 70, 5, 64


def logits(name: str) -> mx.array:
    """The logits of a prompt and of the steps after it, of shape (PROMPT + STEPS, vocabulary)."""
    model = build(name)
    caches = make_cache(model)
    tokens = mx.array([[(7 * i + 3) % VOCAB for i in range(PROMPT + STEPS)]])
    blocks = [tokens[:, :PROMPT], *mx.split(tokens[:, PROMPT:], STEPS, axis=1)]
    made = mx.concatenate([model(block, cache=caches) for block in blocks], axis=1)[0].astype(mx.float32)
    mx.eval(made)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="where to write them, as mx.savez does")
    args = parser.parse_args()
    print(mlx_lm.__file__)
    mx.savez(args.file, **{name: logits(name) for name in runnable()})
