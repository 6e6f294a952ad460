"""Decode as a user drafts, and keep what the run saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftOptions, DraftStats
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance.oracle.recorder import Block, Recording, Task, Watched, next_turn, offsets_of, until_the_end


@dataclass(frozen=True)
class Drafting:
    """What drafts, and how; without costs, drafts are as long as they can be."""

    draft_type: str = "auto"
    num_draft_tokens: int | str = "auto"
    margin: float | str = 0.0
    costs: Any = None


def drafted(model: Any, task: Task, drafting: Drafting, strategy: Any = None) -> Recording:
    """With a strategy of the caller's, its drafts are fed whole."""
    watched, cache, stats = Watched(model), make_prompt_cache(model), DraftStats()
    gated = strategy is None and drafting.costs is not None
    if strategy is None:
        strategy = DraftOptions(drafting.draft_type).make_strategy(model)
    # When a token is yielded, the row of the next one has been taken from the last block that was fed.
    owners: list[Block] = []

    def note(*progress: int) -> None:
        if not progress or progress[0] == progress[1]:
            owners.append(watched.blocks[-1])

    steps = speculative_generate_step(
        mx.array(task.prompt),
        watched,
        draft_strategy=strategy,
        num_draft_tokens=drafting.num_draft_tokens,
        draft_costs=drafting.costs if gated else None,
        draft_margin=drafting.margin,
        disable_adaptive_gate=not gated,
        max_tokens=task.max_tokens,
        prompt_cache=cache,
        prompt_progress_callback=note,
        eos_token_ids=task.eos,
        stats=stats,
    )
    tokens, rows = until_the_end(task, steps, note)
    last = offsets_of(cache)
    return Recording(tokens, rows, next_turn(model, cache, task.after), {}, last, owners[: len(rows)], stats)
