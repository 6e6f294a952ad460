"""Faults that are planted in the process of a server: what its tests have to find."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.draft import verify
from mlx_lm.draft.options import DraftOptions
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.models import llama
from mlx_lm.models.cache import LRUPromptCache

ROOT = Path(__file__).parents[1]
# In seconds. A server stops in less, however long what it does takes.
SOON, TOO_LONG = 4.0, 12.0


def planted(fault: Callable[[], None], folder: Path) -> dict[str, str]:
    """The variables of a process that starts with a fault of this module, or what shows it."""
    start = folder / "sitecustomize.py"
    start.write_text(f"from {__name__} import {fault.__name__}\n{fault.__name__}()\n")
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def keep_a_rejected_token() -> None:
    trim = verify.trim_prompt_cache
    verify.trim_prompt_cache = lambda cache, n: trim(cache, max(n - 1, 0))


def drop_the_options() -> None:
    server.request_draft_options = lambda *_, **__: DraftOptions()


def leave_the_last_block() -> None:
    """What was drafted after the last token of an answer stays in the cache."""
    accept = BlockVerifier.accept

    def without_the_last(self: Any, n_accepted: int) -> None:
        at_the_end = sys._getframe(1).f_code.co_name == "draft_generate_step"
        accept(self, self._n_draft if at_the_end else n_accepted)

    BlockVerifier.accept = without_the_last


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


def show_another_prefix() -> None:
    """Logits processors see the cached part of a prompt in another order."""
    fetch, make, n_cached = server.ResponseGenerator._fetch_cache, server.make_logits_processors, [0]

    def fetch_and_note(self: Any, tokens: Any) -> Any:
        cache, n_cached[0] = fetch(self, tokens)
        return cache, n_cached[0]

    def shown(tokens: Any) -> Any:
        n = n_cached[0]
        return mx.concatenate([tokens[:n][::-1], tokens[n:]])

    def make_misled(*args: Any) -> Any:
        return [lambda tokens, logits, f=f: f(shown(tokens), logits) for f in make(*args)]

    server.ResponseGenerator._fetch_cache = fetch_and_note
    server.make_logits_processors = make_misled


def draft_without_turns() -> None:
    """A request that is drafted is served from its start to its end."""
    serve = server.ResponseGenerator._serve_in_steps

    def serve_at_once(*args: Any, **kwargs: Any) -> Any:
        yield from list(serve(*args, **kwargs))[:1]

    server.ResponseGenerator._serve_in_steps = serve_at_once


def load_slowly() -> None:
    """Not a fault: a model takes longer to load than a server may take to stop."""
    load = server.load

    def load_late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(TOO_LONG)
        return load(*args, **kwargs)

    server.load = load_late


def prefill_slowly() -> None:
    """Not a fault: each chunk of a prompt takes half a second."""
    call = llama.Model.__call__

    def call_late(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inputs.shape[1] > 1:
            time.sleep(0.5)
        return call(self, inputs, *args, **kwargs)

    llama.Model.__call__ = call_late


def load_slowly_and_wait() -> None:
    """A server that stops waits for its model."""
    load_slowly()
    stop_and_join = server.ResponseGenerator.stop_and_join
    server.ResponseGenerator.stop_and_join = lambda self, timeout=None: stop_and_join(self)


def prefill_slowly_and_wait() -> None:
    """A server that stops waits for a prompt."""
    prefill_slowly()
    server.ResponseGenerator._ends_early = lambda *_: False
    stop_and_join = server.ResponseGenerator.stop_and_join
    server.ResponseGenerator.stop_and_join = lambda self, timeout=None: stop_and_join(self)


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


def join_without_the_prompt() -> None:
    """The penalties of a request that joins the batch look back on its answer only."""
    crowd()
    serve, insert, n_prompt = server.ResponseGenerator._serve_in_steps, server.BatchGenerator.insert, [0]

    def insert_answer(self: Any, *args: Any, all_tokens: Any, **kwargs: Any) -> Any:
        return insert(self, *args, all_tokens=[tokens[n_prompt[0] :] for tokens in all_tokens], **kwargs)

    def serve_and_note(self: Any, request: Any, stream: Any, crowded: Any = None, join_batch: Any = None) -> Any:
        def join(rqueue: Any, args: Any, ctx: Any, *rest: Any) -> Any:
            n_prompt[0] = len(ctx.prompt)
            return join_batch(rqueue, args, ctx, *rest)

        yield from serve(self, request, stream, crowded, join_batch and join)

    server.BatchGenerator.insert = insert_answer
    server.ResponseGenerator._serve_in_steps = serve_and_note


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
