"""Other ways to look up drafts, to compare with those of the package. They are simple, not fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mlx_lm.draft import Proposal
from mlx_lm.draft.acceptance import likely_copy


class Matches:
    """Knows every earlier place that matches the end of the sequence.

    ``lengths`` maps the index of the token after a match to the number of tokens that match before it.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            places = self.places.setdefault(token, [])
            self.lengths = {place + 1: self.lengths.get(place, 0) + 1 for place in places}
            places.append(len(self.tokens))
            self.tokens.append(token)

    def propose(self, n_max: int) -> Sequence[int]:
        raise NotImplementedError

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass

    def after(self, end: int, n: int) -> Proposal:
        draft = self.tokens[end : end + n]
        return Proposal(draft, likely_copy(self.lengths[end], None, len(draft)))


class Ngram(Matches):
    """Drafts from the most recent place that matches ``size`` tokens. If there is none, tries fewer, down to ``least``.

    With ``first`` it takes the first place. So does transformers, from ``max_matching_ngram_size`` down to 1 token.
    """

    def __init__(self, size: int, least: int = 2, first: bool = False) -> None:
        super().__init__()
        self.size = size
        self.least = least
        self.choose: Callable[[Iterable[int]], int] = min if first else max

    def propose(self, n_max: int) -> Proposal:
        size = min(max(self.lengths.values(), default=0), self.size)
        if size < self.least:
            return Proposal()
        return self.after(self.choose(end for end, length in self.lengths.items() if length >= size), n_max)


class Longest(Matches):
    """Drafts from the longest match. Of several it takes the most recent, the first, or the commonest draft.

    ``factor`` limits a draft to ``factor * length`` tokens, as SuffixDecoding does.
    """

    def __init__(self, choice: str = "recent", least: int = 2, factor: float | None = None) -> None:
        super().__init__()
        self.choice = choice
        self.least = least
        self.factor = factor

    def propose(self, n_max: int) -> Proposal:
        length = max(self.lengths.values(), default=0)
        if length < self.least:
            return Proposal()
        ends = [end for end, n in self.lengths.items() if n == length]
        if self.choice == "common":
            followers = Counter(self.tokens[end] for end in ends)
            end = max(ends, key=lambda end: (followers[self.tokens[end]], end))
        else:
            end = max(ends) if self.choice == "recent" else min(ends)
        n = n_max if self.factor is None else min(n_max, int(self.factor * length))
        return self.after(end, n)


RIVALS: dict[str, Callable[[], Any]] = {
    "recent 3-gram": lambda: Ngram(3),
    "recent 5-gram": lambda: Ngram(5),
    "first 3-gram": lambda: Ngram(3, first=True),
    "transformers": lambda: Ngram(2, least=1, first=True),
    "transformers, 10": lambda: Ngram(10, least=1, first=True),
    "longest, recent": lambda: Longest("recent"),
    "longest, first": lambda: Longest("first"),
    "longest, common": lambda: Longest("common"),
    "longest, common, 1x": lambda: Longest("common", least=1, factor=1),
}
