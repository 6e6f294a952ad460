"""What the strategies are compared with: other ways to look up, simple and not fast, and oracles that nothing beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mlx_lm.draft import BlockCosts, EditStrategy, Proposal
from mlx_lm.draft.acceptance import likely_copy
from mlx_lm.draft.planner import MAX_AUTO_DRAFT

from conformance.lab.simulate.run import Result, Row
from conformance.lab.streams import Request, Stream

ANY = 1 << 30


class Matches:
    """Drafts what follows an earlier place that matches the end of the sequence.

    A place that matches ``size`` tokens is enough, or fewer, down to ``least``, if there is none. Of several it is the
    most "recent", the "first", or one with the "common" next token. ``factor`` limits a draft to ``factor * length``
    tokens. ``after`` tokens have to follow the place.
    """

    def __init__(
        self, size: int = ANY, choice: str = "recent", least: int = 2, factor: int = ANY, after: int = 1
    ) -> None:
        self.size, self.choice, self.least, self.factor, self.after = size, choice, least, factor, after
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
        if len(self.tokens) - end < self.after:
            return Proposal()
        draft = self.tokens[end : end + min(n_max, self.factor * size)]
        return Proposal(draft, likely_copy(self.lengths[end], None, len(draft)))

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


class SuffixDecoding(Matches):
    """The path that most of the matches take, from the length of match where it is expected to be right the longest.

    A path is as long as the match. It ends where less than a tenth of the matches took it (arXiv 2411.04975, and
    arctic-inference, with a tree of 64 tokens and without the answers to other requests).
    """

    def propose(self, n_max: int) -> Proposal:
        best, most = Proposal(), 0.0
        # Where another match comes to an end, and where the longest path begins.
        sizes = {min(length + more, 64) for length in self.lengths.values() for more in (0, 1)} | {32}
        for size in sorted(sizes, reverse=True):
            # The end itself matches, too, and nothing follows it.
            ends = [end for end, length in self.lengths.items() if length >= size]
            n_all, path, likely, score = len(ends) + 1, list[int](), 1.0, 0.0
            while ends and len(path) < min(n_max, size, 64 - size):
                following = Counter(self.tokens[end + len(path)] for end in ends)
                token, n = following.most_common(1)[0]
                likely, n_all = likely * n / n_all, n
                if likely < 0.1:
                    break
                path, score = [*path, token], score + likely
                ends = [end for end in ends if self.tokens[end + len(path) - 1] == token]
                ends = [end for end in ends if end + len(path) < len(self.tokens)]
            if score > most:
                best, most = Proposal(path, likely_copy(size, None, len(path))), score
        return best


class NgramMod:
    """The token after each ``size`` tokens, in a table that requests share (llama.cpp's ngram-mod, pull request 19164).

    It learns an answer in pieces of 32 tokens, drafts ``least`` tokens or none, and forgets all after three drafts in a
    row of which less than half was right.
    """

    def __init__(self, table: dict[tuple[int, ...], int], size: int = 24, least: int = 48) -> None:
        self.table, self.size, self.least = table, size, least
        self.tokens: list[int] = []
        self.n_learned = self.n_wrong = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self.observe(tokens)
        self._learn()

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        if len(self.tokens) > self.n_learned + self.size + 32:
            self._learn()

    def _learn(self) -> None:
        for start in range(self.n_learned, len(self.tokens) - self.size):
            self.table[tuple(self.tokens[start : start + self.size])] = self.tokens[start + self.size]
        self.n_learned = max(len(self.tokens) - self.size, 0)

    def propose(self, n_max: int) -> Proposal:
        draft, key = list[int](), tuple(self.tokens[-self.size :])
        while len(draft) < max(n_max, self.least) and key in self.table:
            draft.append(self.table[key])
            key = (*key[1:], draft[-1])
        draft = draft[:n_max] if len(draft) >= self.least else []
        return Proposal(draft, likely_copy(self.size, None, len(draft)))

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        if n_drafted > 0:
            self.n_wrong = self.n_wrong + 1 if 2 * n_accepted < n_drafted else 0
        if self.n_wrong == 3:
            self.table.clear()
            self.n_learned = self.n_wrong = 0


# The rules of other programs, and how many tokens they draft: what follows the first of the longest matches (vLLM's
# ngram_proposer.py, and the CandidateGenerator of transformers), or the most recent match of 12 tokens that 12 more
# follow (llama.cpp's ngram-map.cpp).
PUBLISHED: dict[str, tuple[Callable[[], Any], int]] = {
    "SuffixDecoding": (SuffixDecoding, 32),
    "vLLM's n-gram": (lambda: Matches(5, "first", least=3), 5),
    "transformers": (lambda: Matches(2, "first", least=1), 10),
    "llama.cpp's ngram-simple": (lambda: Matches(12, least=12, after=12), 48),
}
RIVALS: dict[str, Callable[[], Any]] = {
    "recent 3-gram": lambda: Matches(3),
    "transformers, 10": lambda: Matches(10, "first", least=1),
    "longest, recent": Matches,
    "longest, first": lambda: Matches(choice="first"),
    "longest, common, 1x": lambda: Matches(choice="common", least=1, factor=1),
} | {name: make for name, (make, _) in PUBLISHED.items()}


def others() -> dict[str, tuple[Callable[[], Any], int]]:
    """The default strategy and the published rules, and how many tokens each drafts without a planner."""
    table = dict[tuple[int, ...], int]()
    return {"edit": (EditStrategy, 8)} | PUBLISHED | {"llama.cpp's ngram-mod": (lambda: NgramMod(table), 64)}


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
