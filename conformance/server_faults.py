"""Faults that are planted in the process of a server: what its tests have to find."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from mlx_lm import draft_generate, server
from mlx_lm.draft_generate import BlockVerifier
from mlx_lm.draft_options import DraftOptions
from mlx_lm.models.cache import LRUPromptCache

ROOT = Path(__file__).parents[1]


def planted(fault: Callable[[], None], folder: Path) -> dict[str, str]:
    """The variables of a process that starts with a fault of this module."""
    start = folder / "sitecustomize.py"
    start.write_text(f"from {__name__} import {fault.__name__}\n{fault.__name__}()\n")
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def keep_a_rejected_token() -> None:
    rewind = draft_generate.rewind_prompt_cache
    draft_generate.rewind_prompt_cache = lambda cache, n: rewind(cache, n - 1)


def drop_the_options() -> None:
    server.request_draft_options = lambda *_, **__: DraftOptions()


def leave_the_last_block() -> None:
    """What was drafted after the last token of an answer stays in the cache."""
    settle = BlockVerifier.settle

    def without_the_last(self: Any, n_accepted: int) -> None:
        at_the_end = sys._getframe(1).f_code.co_name == "draft_generate_step"
        settle(self, self._n_draft if at_the_end else n_accepted)

    BlockVerifier.settle = without_the_last


def store_a_token_too_many() -> None:
    """A cache holds one token more than it is stored for."""
    insert = LRUPromptCache.insert_cache

    def insert_longer(self: Any, model: Any, tokens: Any, cache: Any, **kwargs: Any) -> None:
        insert(self, model, tokens[:-1], cache, **kwargs)

    LRUPromptCache.insert_cache = insert_longer


def keep_every_cache() -> None:
    insert, kept = LRUPromptCache.insert_cache, []

    def insert_and_keep(self: Any, model: Any, tokens: Any, cache: Any, **kwargs: Any) -> None:
        kept.append(deepcopy(cache))
        insert(self, model, tokens, cache, **kwargs)

    LRUPromptCache.insert_cache = insert_and_keep


def draft_without_turns() -> None:
    """A request that is drafted is served from its start to its end."""
    serve = server.ResponseGenerator._serve_in_steps

    def serve_at_once(*args: Any, **kwargs: Any) -> Any:
        yield from list(serve(*args, **kwargs))[:1]

    server.ResponseGenerator._serve_in_steps = serve_at_once
