"""The checks of batches with drafts find a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from mlx_lm.draft.batch import DraftedBlock
from mlx_lm.generate import GenerationBatch
from mlx_lm.models.cache import BatchKVCache

from conformance.doors.batch import Broken
from conformance.subjects.families import mutant
from conformance.testing.decode.batch_checks import (
    check_cancels,
    check_draws,
    check_ends,
    check_failure,
    complaints,
)
from conformance.testing.decode.batch_programs import PROGRAMS, run_programs
from conformance.testing.faults.planted import planted

pytestmark = pytest.mark.usefixtures("uncompiled")

# The package also has a function of that name.
GENERATE: Any = import_module("mlx_lm.generate")
drop = GENERATE.drop_tokens
filter_rows, make_mask, update = GenerationBatch.filter, BatchKVCache.make_mask, BatchKVCache.update_and_fetch


def keep_a_token_too_many(cache: list[Any], n: int | list[int]) -> None:
    drop(cache, max(n - 1, 0) if isinstance(n, int) else [max(m - 1, 0) for m in n])


def trim_alike(cache: list[Any], n: int | list[int]) -> None:
    drop(cache, n if isinstance(n, int) else min(n))


def take_rows_to_end_alike(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(self, "_behind", None):
            return function(self, *args, **kwargs)

    return method


def filter_and_forget(self: Any, keep: list[int]) -> None:
    """What is decoded for the remaining rows, but not returned yet, is lost."""
    self._block = None
    filter_rows(self, keep)


def extract_the_whole_block(self: Any, idx: int) -> list[Any]:
    return [layer.extract(idx) for layer in self.prompt_cache]


keep_the_padding = mutant(
    GenerationBatch._finish_block,
    "[block.n_draft - n for n in n_accepted]",
    "[len(draft) - n for draft, n in zip(block.drafts, n_accepted)]",
)
stop_after_the_block = mutant(
    GenerationBatch._accept,
    "if reason is not None:",
    "if reason == 'length':",
)
count_what_follows_the_end = mutant(
    GenerationBatch._finish_block,
    "self.planner.accept(self.uids, n_accepted)",
    "self.planner.accept(self.uids, [len(row) - 1 for row in rows])",
)
show_the_whole_block = mutant(DraftedBlock._draw_after, "self._tokens[i, n : n + 1]", "self._tokens[i, n:]")
draw_from_the_last_column = mutant(DraftedBlock.draws, "likeliest[i][n]", "likeliest[i][n if self.drafts[i] else -1]")
draw_what_is_rejected = mutant(
    DraftedBlock.draws,
    "            elif self._drawn[i]:",
    "            if self._drawn[i] and self.drafts[i][n:]:",
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
    "cancels": lambda: check_cancels("llama"),
    "draws": lambda: check_draws("llama"),
    "failures": lambda: check_failure("sampler", 1),
    "programs": lambda: run_programs("llama", SEARCH),
}


@pytest.mark.planted
@planted(
    ("rows", GENERATE, "drop_tokens", keep_a_token_too_many),
    ("rows of windows", GENERATE, "drop_tokens", keep_a_token_too_many),
    ("rows of states", GENERATE, "drop_tokens", keep_a_token_too_many),
    ("rows", GENERATE, "drop_tokens", trim_alike),
    ("rows of windows", GENERATE, "drop_tokens", trim_alike),
    ("rows of states", GENERATE, "drop_tokens", trim_alike),
    ("rows", GenerationBatch, "_finish_block", keep_the_padding),
    ("rows", DraftedBlock, "draws", draw_from_the_last_column),
    ("rows", BatchKVCache, "make_mask", take_rows_to_end_alike(make_mask)),
    ("rows", BatchKVCache, "update_and_fetch", take_rows_to_end_alike(update)),
    ("ends", GenerationBatch, "_accept", stop_after_the_block),
    ("ends", GenerationBatch, "_finish_block", count_what_follows_the_end),
    ("draws", DraftedBlock, "_draw_after", show_the_whole_block),
    ("draws", DraftedBlock, "draws", draw_what_is_rejected),
    ("failures", GENERATE, "fail_alone", lambda function, *_: function),
    ("cancels", GenerationBatch, "filter", filter_and_forget),
    ("programs", GenerationBatch, "extract_cache", extract_the_whole_block),
)
def test_a_planted_fault_is_found(where: str) -> None:
    errors = (AssertionError, AttributeError, ValueError, IndexError, RuntimeError, TypeError, Broken)
    with pytest.raises(errors):
        CHECKS[where]()
