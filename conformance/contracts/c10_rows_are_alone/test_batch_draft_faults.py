"""The checks of batches with drafts find a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from mlx_lm.draft import batch as drafts
from mlx_lm.draft.batch import DraftedBatch
from mlx_lm.draft.draws import BlockDraws
from mlx_lm.draft.guard import Guard
from mlx_lm.generate import GenerationBatch
from mlx_lm.models.cache import BatchKVCache

from conformance.testing.decode.batch_checks import (
    check_draws,
    check_ends,
    check_failure,
    complaints,
)
from conformance.testing.decode.batch_programs import PROGRAMS, run_programs
from conformance.testing.decode.batches import Broken
from conformance.testing.faults.planted import planted
from conformance.testing.models.families import mutant

pytestmark = pytest.mark.usefixtures("uncompiled")

drop = drafts.drop_tokens
filter_rows, make_mask, update = DraftedBatch.filter, BatchKVCache.make_mask, BatchKVCache.update_and_fetch


def keep_a_token_too_many(cache: list[Any], n: int | list[int]) -> None:
    drop(cache, max(n - 1, 0) if isinstance(n, int) else [max(m - 1, 0) for m in n])


def trim_alike(cache: list[Any], n: int | list[int]) -> None:
    drop(cache, n if isinstance(n, int) else min(n))


def mask_rows_that_end_alike(cache: BatchKVCache, *args: Any, **kwargs: Any) -> mx.array:
    with patch.object(cache, "offset", cache._idx - cache.left_padding):
        mask: mx.array = make_mask(cache, *args, **kwargs)
        return mask


def take_rows_to_end_alike(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(self, "_behind", None):
            return function(self, *args, **kwargs)

    return method


def filter_and_forget(self: Any, keep: list[int]) -> None:
    """What is decoded for the remaining rows, but not returned yet, is lost."""
    filter_rows(self, keep)
    self._block = self._known = None


keep_the_padding = mutant(
    DraftedBatch._trim,
    "[n_tokens - n for n in n_kept]",
    "[1 + len(draft) - n for draft, n in zip(block.drafts, n_kept)]",
)
stop_after_the_block = mutant(
    DraftedBatch._end,
    "self.max_tokens[i]:\n            break\n",
    "self.max_tokens[i]:\n            pass\n",
)
count_what_follows_the_end = mutant(
    DraftedBatch._end,
    "self.max_tokens[i] = self._num_tokens[i]",
    "self.max_tokens[i] = self._num_tokens[i]\n"
    "            if stats is not None:\n                stats.accepted += len(draws) - len(responses) - 1",
)
show_the_whole_block = mutant(BlockDraws._draw_after, "self.tokens[i, n : n + 1]", "self.tokens[i, n:]")
draw_from_the_last_column = mutant(BlockDraws.rows, "token = greedy[i][n]", "token = greedy[i][n if drafts[i] else -1]")
draw_what_is_rejected = mutant(
    BlockDraws.rows,
    "going_on = [i for i in going_on if rows[i][-1][2]]",
    "rejected = [i for i in going_on if i in drawn and not rows[i][-1][2] and drafts[i][len(rows[i]) - 1 :]]\n"
    "        for i in rejected:\n            self._draw_after(i, len(rows[i]))\n"
    "        going_on = [i for i in going_on if rows[i][-1][2]]",
)
# Far fewer programs find a fault, and the failing one need not be shrunk.
SEARCH = settings(parent=PROGRAMS, max_examples=200, derandomize=True, phases=[Phase.generate])


def check_rows(name: str) -> None:
    assert complaints(name) == []


CHECKS: dict[str, Callable[[], None]] = {
    "rows": lambda: check_rows("llama"),
    "rows of windows": lambda: check_rows("gemma3_text"),
    "rows of states": lambda: check_rows("qwen3_next"),
    "ends": lambda: check_ends("llama"),
    "draws": lambda: check_draws("llama"),
    "failures": lambda: check_failure("sampler", 1),
    "programs": lambda: run_programs("llama", SEARCH),
}


@pytest.mark.planted
@planted(
    ("rows", drafts, "drop_tokens", keep_a_token_too_many),
    ("rows of windows", drafts, "drop_tokens", keep_a_token_too_many),
    ("rows of states", drafts, "drop_tokens", keep_a_token_too_many),
    ("rows", drafts, "drop_tokens", trim_alike),
    ("rows of windows", drafts, "drop_tokens", trim_alike),
    ("rows of states", drafts, "drop_tokens", trim_alike),
    ("rows", DraftedBatch, "_trim", keep_the_padding),
    ("rows", BlockDraws, "rows", draw_from_the_last_column),
    ("rows", BatchKVCache, "make_mask", mask_rows_that_end_alike),
    ("rows", BatchKVCache, "update_and_fetch", take_rows_to_end_alike(update)),
    ("ends", DraftedBatch, "_end", stop_after_the_block),
    ("ends", DraftedBatch, "_end", count_what_follows_the_end),
    ("draws", BlockDraws, "_draw_after", show_the_whole_block),
    ("draws", BlockDraws, "rows", draw_what_is_rejected),
    ("failures", Guard, "__call__", lambda self, *args: self._function(*args)),
    ("programs", DraftedBatch, "filter", filter_and_forget),
    ("programs", DraftedBatch, "extract_cache", GenerationBatch.extract_cache),
)
def test_a_planted_fault_is_found(where: str) -> None:
    errors = (AssertionError, AttributeError, ValueError, IndexError, RuntimeError, TypeError, Broken)
    with pytest.raises(errors):
        CHECKS[where]()
