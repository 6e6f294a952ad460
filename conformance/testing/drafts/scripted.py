"""A drafter that knows the right answer, so that a test can get every acceptance depth."""

from __future__ import annotations

from collections.abc import Sequence


class Scripted:
    """Drafts the right continuation with one wrong token. The place of that token cycles through 0, 1, 2, ...

    So a run sees every acceptance depth, from no token of a draft to all of them.
    """

    def __init__(self, right: Sequence[int], vocab_size: int) -> None:
        self.right = list(right)
        self.vocab_size = vocab_size
        self.seen: list[int] = []
        self.depths: list[int] = []
        self.turn = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.seen += tokens

    def propose(self, n_max: int) -> Sequence[int]:
        start = len(self.seen)
        draft = self.right[start : start + n_max]
        wrong = self.turn % (n_max + 1)
        self.turn += 1
        if wrong < len(draft):
            draft[wrong] = (draft[wrong] + 1) % self.vocab_size
        return draft

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        self.depths.append(n_accepted)
