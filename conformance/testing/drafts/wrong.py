"""Strategies that are always wrong. They show the worst cost of drafting."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.draft import Proposal

from conformance.testing.texts.recorded_streams import VOCAB


class Wrong:
    """Drafts a token that never comes, and claims to be sure of it."""

    likely = 0.985

    def __init__(self, token: int = VOCAB - 1) -> None:
        self.token = token

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, n_max: int) -> Proposal:
        return Proposal([self.token] * n_max, [self.likely])

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


class Changing(Wrong):
    """Always wrong, and claims another likelihood each time, so that past results do not help to predict."""

    n_seen = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.n_seen += 1
        self.likely = (0.7, 0.86, 0.94, 0.97, 0.99, 0.995)[self.n_seen % 6]
