"""Decode with a script of drafts, and measure the noise of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from conformance.drafters import Scripted
from conformance.oracle.recorder import Recording, Task, gap, next_turn, replay, until_the_end
from conformance.oracle.whole import WHOLE

# Stock releases do not have this module, and are measured too.
if TYPE_CHECKING:
    from mlx_lm.draft import DraftStats

DRAFT = 4


def scripted(model: Any, task: Task, drafter: Scripted, stats: DraftStats) -> Recording:
    """Decode with scripted drafts. Each draft is fed whole."""
    # A tree that is judged may have it under another name.
    from mlx_lm.generate import speculative_generate_step

    cache = make_prompt_cache(model)
    options = {"max_tokens": task.max_tokens, "prompt_cache": cache, "num_draft_tokens": DRAFT, "stats": stats, **WHOLE}
    steps = speculative_generate_step(mx.array(task.prompt), model, draft_strategy=drafter, **options)
    tokens, rows = until_the_end(task, steps)
    return Recording(tokens, rows, next_turn(model, cache, task.after), stats=stats)


def noises(model: Any, task: Task, reference: Recording, *, snaps: bool = True) -> Iterator[float]:
    """The distance between blocks of each length and single steps, without any rollback, the longest blocks first."""
    for length in range(DRAFT + 1, 1, -1):
        yield gap(replay(model, task, reference.tokens, repeat(length), snaps=snaps).rows, reference.rows)


def noise(model: Any, task: Task, reference: Recording) -> float:
    """The largest of these distances: the noise of the model and of the kernels."""
    return max(noises(model, task, reference))
