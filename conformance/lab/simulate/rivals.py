"""What the strategies are compared with: other ways to look up, simple and not fast, and oracles that nothing beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mlx_lm.draft import BlockCosts, Proposal
from mlx_lm.draft.acceptance import likely_copy
from mlx_lm.draft.planner import MAX_AUTO_DRAFT

from conformance.lab.simulate.run import Result, Row
from conformance.lab.streams import Request, Stream

ANY = 1 << 30


class Matches:
    """Drafts what follows an earlier place that matches the end of the sequence.

    A place that matches ``size`` tokens is enough, or fewer, down to ``least``, if there is none. Of several it is the
    most "recent", the "first", or one with the "common" next token. ``factor`` limits a draft to ``factor * length``
    tokens, as SuffixDecoding does.
    """

    def __init__(self, size: int = ANY, choice: str = "recent", least: int = 2, factor: int = ANY) -> None:
        self.size, self.choice, self.least, self.factor = size, choice, least, factor
        self.tokens: list[int] = []
        self.places: dict[int, list[int]] = {}
        # How many tokens match, by the place of the token after them.
        self.lengths: dict[int, int] = {}

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            places = self.places.setdefault(token, [])
            self.lengths = {place + 1: self.lengths.get(place, 0) + 1 for place in places}
            places.append(len(self.tokens))
            self.tokens.append(token)

    def propose(self, n_max: int) -> Proposal:
        size = min(max(self.lengths.values(), default=0), self.size)
        if size < self.least:
            return Proposal()
        ends = [end for end, length in self.lengths.items() if length >= size]
        followers = Counter(self.tokens[end] for end in ends if self.choice == "common")
        end = min(ends) if self.choice == "first" else max(ends, key=lambda end: (followers[self.tokens[end]], end))
        draft = self.tokens[end : end + min(n_max, self.factor * size)]
        return Proposal(draft, likely_copy(self.lengths[end], None, len(draft)))

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


RIVALS: dict[str, Callable[[], Any]] = {
    "recent 3-gram": lambda: Matches(3),
    "recent 5-gram": lambda: Matches(5),
    "first 3-gram": lambda: Matches(3, "first"),
    # It takes the first place that matches max_matching_ngram_size tokens, or fewer, down to one.
    "transformers": lambda: Matches(2, "first", least=1),
    "transformers, 10": lambda: Matches(10, "first", least=1),
    "longest, recent": Matches,
    "longest, first": lambda: Matches(choice="first"),
    "longest, common": lambda: Matches(choice="common"),
    "longest, common, 1x": lambda: Matches(choice="common", least=1, factor=1),
}


def copies(request: Request) -> list[int]:
    """For each place of the answer, how many tokens from there on are a copy of one earlier place."""
    tokens = np.array([*request.prompt, *request.answer])
    start, same, found = len(request.prompt), np.zeros(len(tokens) + 1, int), []
    for end in range(len(tokens) - 1, start - 1, -1):
        # For each place, how many tokens match from it and from the end on.
        same[:-1] = np.where(tokens == tokens[end], same[1:] + 1, 0)
        found.append(min(int(same[:end].max(initial=0)), MAX_AUTO_DRAFT))
        same[-1] = 0
    return found[::-1]


def cheapest(drafts: Sequence[int], costs: BlockCosts) -> Result:
    """The blocks that cost least, if up to ``drafts[i]`` right tokens can be drafted at the place ``i``."""
    n = len(drafts)
    prices = [costs(length) for length in range(1, MAX_AUTO_DRAFT + 2)]
    best, length = [0.0] * (n + 1), [0] * n
    for i in reversed(range(n)):
        most = min(drafts[i], n - i - 1)
        best[i], length[i] = min((prices[d] + best[i + 1 + d], 1 + d) for d in range(most + 1))
    n_blocks = i = 0
    while i < n:
        n_blocks, i = n_blocks + 1, i + length[i]
    return Result(n, n_blocks, n, best[0])


def limits(streams: Sequence[Stream], costs: BlockCosts) -> dict[str, Row]:
    """An oracle that knows which earlier place is copied next, and one that knows the answer."""
    rows = {"knows the place": Row(), "knows the answer": Row()}
    for one in streams:
        for request in one.requests:
            rows["knows the place"].add(one, cheapest(copies(request), costs))
            rows["knows the answer"].add(one, cheapest([MAX_AUTO_DRAFT] * len(request.answer), costs))
    return rows
