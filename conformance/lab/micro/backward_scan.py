"""A plain backward scan, to compare with the indexes of the package, and texts to search."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from mlx_lm.draft import EditStrategy, NgramSimpleStrategy, SuffixStrategy

VOCAB = 50_000


class Scan:
    """Searches backward for the last three tokens, then for the last two. An index replaces this."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def propose(self, n_max: int) -> Sequence[int]:
        tokens = self.tokens
        for n in (3, 2):
            tail = tokens[-n:]
            for end in range(len(tokens) - 1, n - 1, -1):
                if tokens[end - n : end] == tail:
                    return tokens[end : end + n_max]
        return []


INDEXES: dict[str, Callable[[], Any]] = {
    "ngram-simple": NgramSimpleStrategy,
    "suffix": SuffixStrategy,
    "edit": EditStrategy,
}


@cache
def text(n: int) -> list[int]:
    """A text of n tokens: half is new, half repeats earlier passages with one change in each."""
    rng = random.Random(n)
    tokens: list[int] = []
    while len(tokens) < n:
        start = rng.randrange(len(tokens) + 1)
        tokens += [*tokens[start : start + 200], rng.randrange(VOCAB)]
        tokens += [rng.randrange(VOCAB) for _ in range(200)]
    return tokens[:n]


def bytes_a_token(make: Callable[[], Any], tokens: Sequence[int]) -> float:
    """The memory of a drafter in bytes for each token. It includes the integers, as if from ``mx.array.tolist``."""
    digits = [str(token) for token in tokens]
    tracemalloc.start()
    strategy = make()
    # Observed in parts, so that the list of the caller does not count.
    for i in range(0, len(digits), 256):
        strategy.observe([int(digit) for digit in digits[i : i + 256]])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(tokens)
