"""The right content of a prompt cache, in code that is simple enough to check by reading.

A reference keeps every token of every sequence in a list. It evicts nothing. It works out what a query sees from the
whole list, as in single steps. A snapshot is a deep copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Stands for padding. Tokens are positive.
PAD = 0
# A block of tokens: a list for each sequence, all of the same length.
Block = list[list[int]]
# Maps the tokens so far to those that the last one sees.
View = Callable[[list[int]], list[int]]

GROUP = 4
TAIL = 2


def everything(tokens: list[int]) -> list[int]:
    return tokens


def window(size: int, keep: int = 0) -> View:
    """The first ``keep`` tokens and the last ``size - keep``."""
    return lambda tokens: tokens if len(tokens) <= size else tokens[:keep] + tokens[keep - size :]


def chunk(size: int) -> View:
    """The tokens in the chunk of the last one."""
    return lambda tokens: tokens[(len(tokens) - 1) // size * size :]


@dataclass
class Reference:
    """A cache of rows: one sequence or a batch."""

    view: View
    tokens: Block
    # For each sequence, the padding on the left that is still to come. Below zero once it came.
    left: list[int]
    # For prompts with padding on the right, the tokens that are still to come.
    lengths: list[int] | None = field(default=None)

    def feed(self, block: Block) -> list[list[list[int]]]:
        """Feed a block. Returns the tokens that each token sees, itself included, and an empty list for padding."""
        return [[self._feed(i, token) for token in tokens] for i, tokens in enumerate(block)]

    def _feed(self, i: int, token: int) -> list[int]:
        real = self.left[i] <= 0 and (self.lengths is None or self.lengths[i] > 0)
        self.tokens[i].append(token if real else PAD)
        self.left[i] -= 1
        if self.lengths is not None:
            self.lengths[i] -= 1
        return sorted(self.view(self.rows[i])) if real else []

    def drop(self, numbers: int | list[int]) -> None:
        """Drop tokens from the end: the same number for each sequence, or one number each."""
        each = [numbers] * len(self.tokens) if isinstance(numbers, int) else numbers
        self.tokens = [tokens[: len(tokens) - n] for tokens, n in zip(self.tokens, each, strict=True)]
        self.left = [left + n for left, n in zip(self.left, each, strict=True)]

    @property
    def rows(self) -> Block:
        return [[token for token in tokens if token != PAD] for tokens in self.tokens]

    @property
    def offsets(self) -> list[int]:
        """The position of the next token. It is below zero for padding."""
        return [len(rows) - max(left, 0) for rows, left in zip(self.rows, self.left, strict=True)]

    @property
    def shortest(self) -> int:
        return min(len(tokens) for tokens in self.tokens)

    @property
    def sizes(self) -> list[int]:
        """How many tokens each row holds."""
        return [len(rows) for rows in self.rows]

    @property
    def padding_to_come(self) -> list[int]:
        return [max(left, 0) for left in self.left]

    # Operations on a batch. After any of these, padding that was fed cannot be dropped.

    def prepare(self, lengths: list[int]) -> None:
        self.lengths = list(lengths)

    def finalize(self) -> None:
        self.tokens, self.lengths = self.rows, None
        self.left = [-len(rows) for rows in self.tokens]

    def filter(self, keep: list[int]) -> None:
        rows = self.rows
        self.tokens, self.left = [rows[i] for i in keep], [self.left[i] for i in keep]

    def extend(self, other: Reference) -> None:
        self.tokens, self.left = self.rows + other.rows, self.left + other.left


@dataclass
class Recurrent(Reference):
    """A recurrent state, which depends on all tokens and their order, and the last tokens, as in a convolution."""

    @property
    def states(self) -> list[int]:
        return [fold(rows) for rows in self.rows]

    @property
    def tails(self) -> Block:
        return [([PAD] * TAIL + rows)[-TAIL:] for rows in self.rows]


@dataclass
class Grouped(Reference):
    """The sums of the finished groups of tokens, and the tokens of the unfinished group."""

    @property
    def closed(self) -> Block:
        full = [rows[: len(rows) // GROUP * GROUP] for rows in self.rows]
        return [[sum(rows[i : i + GROUP]) for i in range(0, len(rows), GROUP)] for rows in full]

    @property
    def open(self) -> Block:
        return [rows[len(rows) // GROUP * GROUP :] for rows in self.rows]


def fold(tokens: list[int], state: int = 0) -> int:
    for token in tokens:
        state = (31 * state + token) % 4099
    return state
