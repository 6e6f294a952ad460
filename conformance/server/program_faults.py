"""Errors at the points of a server that requests pass, and faults of a server whose clients leave."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache

# A request whose prompt has one of these words raises there.
POINTS = {
    "fetches": (LRUPromptCache, "fetch_nearest_cache"),
    "joins": (server.BatchGenerator, "insert_segments"),
    "stores": (LRUPromptCache, "insert_cache"),
}
RESTING = "at rest with"


def raise_at_points() -> None:
    """Not a fault: a request that names a point raises there. The log says what an idle server holds."""
    generator, held = server.ResponseGenerator, [0]
    tokenizer: list[Any] = []
    wait, tokenize = generator._next_request, generator._tokenize

    def raising(point: str, function: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            tokens = args[1] if args else sum(kwargs["segments"][0], kwargs["all_tokens"][0])
            if point in tokenizer[0].decode([t for t in tokens if t is not None and t >= 0]):
                raise ZeroDivisionError(f"the point {point} raises")
            return function(self, *args, **kwargs)

        return call

    def tokenize_and_note(self: Any, used: Any, *args: Any) -> Any:
        tokenizer[:] = [used]
        return tokenize(self, used, *args)

    def wait_and_tell(self: Any, timeout: Any = None) -> Any:
        request = wait(self, timeout)
        active = mx.get_active_memory()
        if request is None and timeout and active != held[0]:
            held[0] = active
            print(RESTING, active, flush=True)
        return request

    generator._tokenize, generator._next_request = tokenize_and_note, wait_and_tell
    for point, (owner, name) in POINTS.items():
        setattr(owner, name, raising(point, getattr(owner, name)))


def die_where_a_request_joins() -> None:
    """An exception while a request joins the batch ends the generation thread."""
    fetch = LRUPromptCache.fetch_nearest_cache

    def fetch_or_die(self: Any, model: Any, tokens: Any) -> Any:
        try:
            return fetch(self, model, tokens)
        except ZeroDivisionError as e:
            raise SystemExit from e

    LRUPromptCache.fetch_nearest_cache = fetch_or_die
    # The server does not end then, so that it answers the other requests with errors.
    server.ResponseGenerator.is_healthy = True


def decode_for_nobody() -> None:
    """A request goes on after its client left."""
    server.GenerationContext.stop = lambda _: None


def keep_every_row() -> None:
    """What a request has computed is never freed."""
    insert, kept = LRUPromptCache.insert_cache, []

    def insert_and_keep(self: Any, model: Any, tokens: Any, cache: Any, **kwargs: Any) -> None:
        kept.append(deepcopy(cache))
        mx.eval([each.state for each in kept[-1]])
        insert(self, model, tokens, cache, **kwargs)

    LRUPromptCache.insert_cache = insert_and_keep
