"""Faults in what a prompt that begins as an earlier one goes on from."""

from __future__ import annotations

from typing import Any

from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import Checkpoint, LRUPromptCache
from mlx_lm.prefixes import Checkpoints

from conformance.testing.models.families import mutant


def note_a_token_too_many() -> None:
    """The state after n tokens is noted as that after n + 1."""
    Checkpoints._take = mutant(Checkpoints._take, "self.taken[self.n - n_after]", "self.taken[self.n - n_after + 1]")


def go_on_in_the_checkpoint() -> None:
    """The request that goes on from a checkpoint changes it."""
    Checkpoint.restore = mutant(Checkpoint.restore, "vars(copy.deepcopy(layer))", "vars(layer)")


def take_over_all_checkpoints() -> None:
    """A prompt has the checkpoints of another also where they differ."""
    LRUPromptCache.insert_cache = mutant(LRUPromptCache.insert_cache, "if n <= shared", "if n <= len(tokens)")


def take_none_with_drafts() -> None:
    """A request with drafts leaves the next one less."""
    insert = BatchGenerator.insert_segments

    def insert_without(self: Any, *args: Any, planners: Any, checkpoints: Any, **kwargs: Any) -> Any:
        taking = [None if planner else one for planner, one in zip(planners, checkpoints, strict=True)]
        return insert(self, *args, planners=planners, checkpoints=taking, **kwargs)

    BatchGenerator.insert_segments = insert_without
