"""Strategies that are always wrong: what drafting costs at worst."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.testing.texts.recorded_streams import VOCAB


class Wrong:
    """Drafts what never comes, sure that it will."""

    match_length, match_was_right = 100, True

    def __init__(self, token: int = VOCAB - 1) -> None:
        self.token = token

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, n_max: int) -> Sequence[int]:
        return [self.token] * n_max

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


class Changing(Wrong):
    """Wrong after matches of every length, so that what was learned after one says nothing of the next."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.match_length = 2 ** ((self.match_length.bit_length() + 1) % 6)
