"""Faults that are planted in the process of a server: what its tests have to find."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlx_lm import draft_generate, server
from mlx_lm.draft_generate import BlockVerifier
from mlx_lm.draft_options import DraftOptions
from mlx_lm.models.cache import LRUPromptCache

ROOT = Path(__file__).parents[1]


def planted(fault: Callable[[], None], folder: Path) -> dict[str, str]:
    """The variables of a process that starts with a fault of this module, or what shows it."""
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


# A drafted request joins the batch after so many blocks, the next request after one more.
FIRST_MOVE, LAST_MOVE = 1, 9


def crowd() -> None:
    """Not a fault: for every request that is drafted there seem to come more, each time a block later."""
    serve, n_served = server.ResponseGenerator._serve_in_steps, count()

    def serve_for_a_while(self: Any, request: Any, stream: Any, crowded: Any = None, join_batch: Any = None) -> Any:
        if crowded is not None:
            n_blocks, last = count(FIRST_MOVE), FIRST_MOVE + next(n_served) % (LAST_MOVE - FIRST_MOVE + 1)
            crowded = lambda: next(n_blocks) >= last  # noqa: E731
        yield from serve(self, request, stream, crowded, join_batch)

    server.ResponseGenerator._serve_in_steps = serve_for_a_while


def join_with_the_last_token() -> None:
    """The batch is fed a token that the cache has."""
    crowd()
    server.trim_prompt_cache = lambda *_: None


def join_without_stop_words() -> None:
    """What was matched of a stop word before the batch is forgotten."""
    crowd()
    server.MatchedInPart = lambda matcher: SimpleNamespace(matcher=lambda: type(matcher)(matcher._root))


def join_with_other_text() -> None:
    """The text of a character that began before the batch is lost."""
    crowd()
    serve = server.ResponseGenerator._serve_in_steps

    def serve_shorter(self: Any, request: Any, stream: Any, crowded: Any = None, join_batch: Any = None) -> Any:
        def join(rqueue: Any, args: Any, ctx: Any, *rest: Any) -> Any:
            prompt, ctx.prompt = ctx.prompt, ctx.prompt + rest[0][len(ctx.prompt) :]
            args.max_tokens -= len(ctx.prompt) - len(prompt)
            try:
                return join_batch(rqueue, args, ctx, *rest)
            finally:
                ctx.prompt = prompt

        yield from serve(self, request, stream, crowded, join_batch and join)

    server.ResponseGenerator._serve_in_steps = serve_shorter
