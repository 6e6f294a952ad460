"""The drafters of the tests: each knows the right answer, and is wrong where a test needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

# The vocabulary of the tiny models.
VOCAB = 64
# A token that no recorded text holds.
NEVER = 2**18 - 2


class Scripted:
    """Drafts the right continuation with one wrong token. The place of that token cycles through 0, 1, 2, ...

    So a run sees every acceptance depth, from no token of a draft to all of them. Right tokens follow the wrong one.
    """

    def __init__(self, right: Sequence[int], vocab_size: int = VOCAB) -> None:
        self.right = list(right)
        self.vocab_size = vocab_size
        self.seen: list[int] = []
        self.depths: list[int] = []
        self.turn = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.seen += tokens

    def wrong(self, draft: Sequence[int], n_max: int) -> Sequence[int]:
        """The places of a draft that are wrong."""
        self.turn += 1
        return [(self.turn - 1) % (n_max + 1)]

    def propose(self, n_max: int) -> Sequence[int]:
        draft = self.right[len(self.seen) : len(self.seen) + n_max]
        for i in self.wrong(draft, n_max):
            if i < len(draft):
                draft[i] = (draft[i] + 1) % self.vocab_size
        return draft

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        self.depths.append(n_accepted)


class Partly(Scripted):
    """Drafts with one wrong token after a share of each draft."""

    def __init__(self, right: Sequence[int], share: float) -> None:
        super().__init__(right)
        self.share = share

    def wrong(self, draft: Sequence[int], n_max: int) -> Sequence[int]:
        return [int(self.share * len(draft))]


class AtDepth(Scripted):
    """Drafts ``depth`` right tokens every time, then wrong ones."""

    def __init__(self, right: Sequence[int], depth: int) -> None:
        super().__init__(right)
        self.depth = depth
        self.as_meant: list[bool] = []

    def wrong(self, draft: Sequence[int], n_max: int) -> Sequence[int]:
        return range(self.depth, len(draft))

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        # A proposal of which nothing was fed is answered as well.
        if n_drafted > 0:
            self.as_meant.append(n_accepted == min(self.depth, n_drafted))


class Wrong:
    """Drafts a token that never comes, and claims to be sure of it: the worst cost of drafting."""

    likely = 0.985

    def __init__(self, token: int = NEVER) -> None:
        self.token = token

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, n_max: int) -> Any:
        from mlx_lm.draft import Proposal

        return Proposal([self.token] * n_max, [self.likely])

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


class Changing(Wrong):
    """Always wrong, and claims another likelihood each time, so that past results do not help to predict."""

    n_seen = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.n_seen += 1
        self.likely = (0.7, 0.86, 0.94, 0.97, 0.99, 0.995)[self.n_seen % 6]


class Head:
    """A draft head that says the next token of a text by its place, a wrong one at each ``wrong``-th place.

    Its cache holds what a head has to keep right: each token, and a digest of the hidden state that it was drawn from.
    """

    hidden_layers, cost = (-1,), 0.01
    # A quantized cache takes groups of this many.
    WIDTH = 32

    def __init__(self, text: Sequence[int], wrong: int = 4) -> None:
        self.text, self.wrong = text, wrong

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
        digest = hidden.astype(mx.float32).sum(axis=-1)
        wide = (mx.repeat(x[:, None, :, None].astype(mx.float32), self.WIDTH, axis=-1) for x in (tokens, digest))
        cache[0].update_and_fetch(*wide)
        places = mx.array(cache[0].offset).reshape(-1, 1) + mx.arange(2 - tokens.shape[1], 2)
        return mx.broadcast_to(places[..., None], hidden.shape).astype(mx.float32)

    def likeliest(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        tokens = mx.array([[self.said(place) for place in row] for row in hidden[..., 0].astype(mx.int32).tolist()])
        return tokens, mx.full(tokens.shape, 0.7)

    def said(self, place: int) -> int:
        token = self.text[place] if place < len(self.text) else 0
        return (token + (place % self.wrong == 0)) % VOCAB
