"""What transformers computes with the heads of the tiny checkpoints: conformance.lab.heads wrote it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

# With which it was recorded. Another mlx may draw other weights of the checkpoints.
MLX = "0.32.4"
FILE = Path(__file__).with_suffix(".safetensors")
# A short text and one that is longer than a window; each row follows from a token and the state before it.
LENGTHS, N_DRAFTED = (3, 21), 2
LENGTH = max(LENGTHS)
TEXT = [(7 * i + i * i // 5 + 3) % 64 for i in range(LENGTH + 1)]
# They have the same weights.
SAME = {"qwen3_5_moe": "qwen3_5_moe_fused"}


def recorded(family: str, length: int = LENGTH) -> mx.array | None:
    """The logits of a text of ``length`` rows and of the drafted ones, (L + n, V), if transformers has such a head."""
    if version("mlx") != MLX:
        return None
    return mx.load(str(FILE)).get(f"{SAME.get(family, family)}.{length}")
