"""The right content of a prompt cache, in code that is simple enough to check by reading.

A reference keeps every token of every row in a list. It evicts nothing. What a token sees is worked out from the whole
list, as in single steps. A snapshot is a deep copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Stands for padding, and for a column that a token does not see. Tokens are positive.
PAD = 0
# A list of tokens for each row, all of the same length.
Block = list[list[int]]
# For each row and each of its tokens, what that token sees, by column.
Table = list[list[list[int]]]
# Maps the tokens so far to those that the last one sees.
View = Callable[[list[int]], list[int]]


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
    """What a layer should see of a cache: of one sequence, or of each row of a batch."""

    view: View
    # For each row, the padding on the left that is still to come. Below zero once it came.
    left: list[int] = field(default_factory=lambda: [0])
    tokens: Block = field(default_factory=list)
    # For prompts with padding on the right, the tokens that are still to come.
    lengths: list[int] | None = None

    def __post_init__(self) -> None:
        self.tokens = self.tokens or [[] for _ in self.left]

    def feed(self, block: Block) -> Table:
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
        """Drop tokens from the end: the same number for each row, or one number each."""
        each = [numbers] * len(self.tokens) if isinstance(numbers, int) else numbers
        self.tokens = [tokens[: len(tokens) - n] for tokens, n in zip(self.tokens, each, strict=True)]
        self.left = [left + n for left, n in zip(self.left, each, strict=True)]

    @property
    def rows(self) -> Block:
        return [[token for token in tokens if token != PAD] for tokens in self.tokens]

    @property
    def sizes(self) -> list[int]:
        """How many tokens each row holds."""
        return [len(rows) for rows in self.rows]

    @property
    def offsets(self) -> list[int]:
        """The position of the next token. It is below zero for padding."""
        return [size - max(left, 0) for size, left in zip(self.sizes, self.left, strict=True)]

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


def difference(tables: list[Table], references: list[Reference], block: Block) -> str:
    """Feed a block to the references. Returns what a token sees that it should not, or does not see, as a sentence."""
    for table, reference in zip(tables, [one.feed(block) for one in references], strict=True):
        for i, row in enumerate(reference):
            for token, right, columns in zip(block[i], row, table[i], strict=True):
                seen = sorted(column for column in columns if column != PAD)
                if right and seen != right:
                    of = f" of row {i}" if len(block) > 1 else ""
                    return f"token {token}{of} sees {words(seen)} instead of {words(right)}"
    return ""


def words(tokens: list[int]) -> str:
    return " ".join(map(str, tokens)) or "nothing"
