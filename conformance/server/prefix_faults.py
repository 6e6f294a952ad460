"""Faults in what a prompt that begins as an earlier one goes on from."""

from __future__ import annotations

import gc
import json
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import Checkpoint, LRUPromptCache
from mlx_lm.prefixes import Checkpoints

from conformance.subjects.families import mutant


def note_a_token_too_many() -> None:
    """The state after n tokens is noted as that after n + 1."""
    Checkpoints.advance = mutant(Checkpoints.advance, "self.taken[end - n_after]", "self.taken[end - n_after + 1]")


def go_on_in_the_checkpoint() -> None:
    """The request that goes on from a checkpoint changes it."""
    Checkpoint.restore = mutant(Checkpoint.restore, "vars(copy.deepcopy(layer))", "vars(layer)")


def take_over_all_checkpoints() -> None:
    """A prompt has the checkpoints of another also where they differ."""
    fetch = LRUPromptCache.fetch_nearest_cache
    LRUPromptCache.fetch_nearest_cache = mutant(fetch, "tokens[:prefix]).items()", "result.longer).items()")


def take_none_with_drafts() -> None:
    """A request with drafts leaves the next one less."""
    insert = BatchGenerator.insert_segments

    def insert_without(self: Any, *args: Any, planners: Any, checkpoints: Any, **kwargs: Any) -> Any:
        taking = [None if planner else one for planner, one in zip(planners, checkpoints, strict=True)]
        return insert(self, *args, planners=planners, checkpoints=taking, **kwargs)

    BatchGenerator.insert_segments = insert_without


def leave_checkpoints_out() -> None:
    """The bytes of checkpoints do not count."""
    LRUPromptCache.nbytes = property(lambda self: self._n_bytes)


def leave_batches_as_they_are() -> None:
    """What a batch leaves is not computed, so that it holds all of the batch."""
    generator = server.ResponseGenerator
    generator._insert_cache = mutant(generator._insert_cache, "mx.async_eval(", "id(")


def tell_what_is_held() -> None:
    """Not a fault: the page /held has the bytes that are counted before each request, and those in use at rest."""
    told: list[tuple[int, int]] = []
    wait, get = server.ResponseGenerator._next_request, server.APIHandler.do_GET

    def wait_and_note(self: Any, timeout: Any = None) -> Any:
        request = wait(self, timeout)
        if request is not None:
            gc.collect()
            mx.synchronize()
            # It does not wait for a request while there are others.
            told.append((self.prompt_cache.nbytes, mx.get_active_memory() if timeout else 0))
        return request

    def get_or_tell(self: Any) -> None:
        if self.path != "/held":
            get(self)
            return
        self._set_completion_headers()
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    server.ResponseGenerator._next_request = wait_and_note
    server.APIHandler.do_GET = get_or_tell
