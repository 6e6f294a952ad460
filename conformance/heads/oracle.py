"""A head for tests: its cache holds the tokens that it was given, and it says what follows in a known text."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

# A quantized cache takes groups of this many.
VOCAB, WIDTH = 64, 32


class Oracle:
    """Says the next token of a text, a wrong one at each ``wrong``-th place.

    The cache holds what a head has to keep right: each token, and a digest of the hidden state that it was drawn from.
    """

    hidden_layers, cost = (-1,), 0.01

    def __init__(self, text: list[int], wrong: int = 4) -> None:
        self.text, self.wrong = text, wrong

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
        digest = hidden.astype(mx.float32).sum(axis=-1)
        wide = (mx.repeat(x[:, None, :, None].astype(mx.float32), WIDTH, axis=-1) for x in (tokens, digest))
        cache[0].update_and_fetch(*wide)
        ends = mx.array(cache[0].offset).reshape(-1, 1) + mx.arange(1 - tokens.shape[1], 1)
        shown = mx.broadcast_to(ends, tokens.shape)
        return mx.broadcast_to(shown[..., None], hidden.shape).astype(mx.float32)

    def likeliest(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        places = hidden[..., 0].astype(mx.int32)
        tokens = mx.array([[self.said(place) for place in row] for row in places.tolist()])
        return tokens, mx.full(tokens.shape, 0.7)

    def said(self, place: int) -> int:
        token = self.text[place] if place < len(self.text) else 0
        return (token + (place % self.wrong == 0)) % VOCAB


def held(headed: Any, cache: list[Any]) -> tuple[list[int], list[float]]:
    """The tokens that a head is shown for its next draft, and the digests of their hidden states."""
    headed.draft(mx.array([[0]]), cache, 1)
    keys, values = (x[0, 0, :, 0] for x in cache[-1][1].keys_and_values())
    return keys.astype(mx.int32).tolist(), values.tolist()
