"""Strategies that are always wrong. They show the worst cost of drafting."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.draft import Proposal

from conformance.testing.texts.recorded_streams import VOCAB


class Wrong:
    """Drafts a token that never comes, and claims to be sure of it."""

    match_length = 100

    def __init__(self, token: int = VOCAB - 1) -> None:
        self.token = token

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, n_max: int) -> Proposal:
        return Proposal([self.token] * n_max, self.match_length, was_right=True)

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


class Changing(Wrong):
    """Always wrong, and claims another match length each time, so that past results do not help to predict."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.match_length = 2 ** ((self.match_length.bit_length() + 1) % 6)
