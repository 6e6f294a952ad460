"""Every architecture decodes with drafts, rejects some, and goes on.

The prompt is longer than the windows and chunks of the tiny configurations, and drafts are rejected at every depth.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, _BaseCache
from mlx_lm.models.deepseek_v41 import LayerCache

from conformance.drafters import Scripted
from conformance.oracle.recorder import Task, gap, plain
from conformance.oracle.replay import DRAFT, noises, scripted
from conformance.subjects.architectures import build, runnable
from conformance.testing.faults.models import keep_the_state, trim_one_short, trim_to_the_wrong_place
from conformance.testing.faults.planted import nothing, planted

VOCAB = 64
PROMPTS = {"short": [5, 9, 3], "past the window": [(7 * i + 3) % VOCAB for i in range(21)]}
TOKENS = 18
pytestmark = pytest.mark.usefixtures("uncompiled")
# Models with a cache that cannot drop the end of a block. It is restored, and accepted tokens are fed again.
RESTORED = {"deepseek_v41"}
# The models whose blocks are not row-identical on a CPU: docs/contracts.md says why.
ROUNDING = {"deepseek_v32", "deepseek_v41", "glm_moe_dsa"}


def complaints(name: str, where: str) -> list[str]:
    """The differences between a drafted and a plain decode. Empty if it is right."""
    model, prompt = build(name), PROMPTS[where]
    task = Task(tuple(prompt), TOKENS)
    right = plain(model, task)
    drafter, stats = Scripted(prompt + right.tokens, VOCAB), DraftStats()
    got = scripted(model, task, drafter, stats)

    def near(distance: float, n_noises: int) -> bool:
        # Measuring the noise takes as long as the rest, so it is done only for a model that has some.
        is_exact = mx.default_device() == mx.cpu and name not in ROUNDING
        bounds = () if is_exact else noises(model, task, right)
        return distance == 0 or any(distance <= n_noises * one for one in bounds)

    checks = {
        "tokens": got.tokens == right.tokens,
        "log probabilities": near(gap(got.rows, right.rows), 8),
        # The logits of the next turn have a larger scale.
        "cache": near(gap(got.after, right.after), 128),
        "depths": set(range(DRAFT)) <= set(drafter.depths),
        # One pass for the last token of the prompt, one for each cycle, and one at the end after a restore.
        "forwards": stats.forwards <= TOKENS + 1 - stats.accepted + (name in RESTORED),
    }
    return [check for check, holds in checks.items() if not holds]


@pytest.mark.parametrize(("name", "where"), [(name, where) for name in runnable() for where in PROMPTS])
def test_parity(name: str, where: str) -> None:
    """Equal bit for bit if the rows of a block equal single steps, and else within the noise of the model."""
    assert complaints(name, where) == []


arrays_drop: Any = getattr(ArraysCache, "trim", None)


def drop_to_a_late_conv_state(cache: ArraysCache, n: int) -> int:
    arrays_drop(cache, n)
    if n > 0:
        cache.cache = [mx.roll(cache[0], 1, axis=1), *cache.cache[1:]]
    return n


def forget_the_order(cache: RotatingKVCache) -> Any:
    return _BaseCache.snap(cache)


@pytest.mark.planted
@planted(
    ("gemma4_text", RotatingKVCache, "snap", forget_the_order),
    ("llama", KVCache, "trim", trim_one_short),
    ("gemma3_text", RotatingKVCache, "trim", trim_to_the_wrong_place),
    ("mamba", ArraysCache, "trim", keep_the_state),
    ("qwen3_next", ArraysCache, "trim", drop_to_a_late_conv_state),
    ("deepseek_v41", LayerCache, "restore", nothing),
)
def test_a_planted_fault_is_found(where: str) -> None:
    assert [c for prompt in PROMPTS for c in complaints(where, prompt)] != []
