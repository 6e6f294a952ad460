"""The right content of a prompt cache, in code that is simple enough to check by reading.

A reference keeps every token of every row in a list. It evicts nothing. What a token sees is worked out from the whole
list, as in single steps. A snapshot is a deep copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# Stands for padding, and for a column that a token does not see. Tokens are positive.
PAD = 0
# A list of tokens for each row, all of the same length.
Block = list[list[int]]
# For each row and each of its tokens, what that token sees, by column.
Table = list[list[list[int]]]
# Maps the tokens so far to those that the last one sees.
View = Callable[[list[int]], list[int]]


def everything(_: int) -> View:
    return lambda tokens: tokens


def window(size: int, keep: int = 0) -> View:
    """The first ``keep`` tokens and the last ``size - keep``."""
    return lambda tokens: tokens if len(tokens) <= size else tokens[:keep] + tokens[keep - size :]


def kept(size: int) -> View:
    return window(size, keep=2)


def last_two(_: int) -> View:
    return window(2)


def chunk(size: int) -> View:
    """The tokens in the chunk of the last one."""
    return lambda tokens: tokens[(len(tokens) - 1) // size * size :]


@dataclass
class Reference:
    """What the layers should see of caches: of one sequence, or of each row of a batch."""

    # One for each layer.
    views: Sequence[View]
    # For each row, the padding on the left that is still to come. Below zero once it came.
    left: list[int] = field(default_factory=lambda: [0])
    tokens: Block = field(default_factory=list)
    # For prompts with padding on the right, the tokens that are still to come.
    lengths: list[int] | None = None

    def __post_init__(self) -> None:
        self.tokens = self.tokens or [[] for _ in self.left]

    def feed(self, block: Block) -> list[Table]:
        """What each token of each row sees in each layer. It is empty for padding."""
        rows = [[self._feed(i, token) for token in tokens] for i, tokens in enumerate(block)]
        return [[[seen[layer] for seen in row] for row in rows] for layer in range(len(self.views))]

    def _feed(self, i: int, token: int) -> list[list[int]]:
        real = self.left[i] <= 0 and (self.lengths is None or self.lengths[i] > 0)
        self.tokens[i].append(token if real else PAD)
        self.left[i] -= 1
        if self.lengths is not None:
            self.lengths[i] -= 1
        return [sorted(view(self.rows[i])) if real else [] for view in self.views]

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

    def finalize(self) -> None:
        self.tokens, self.lengths = self.rows, None
        self.left = [-len(rows) for rows in self.tokens]

    def filter(self, keep: list[int]) -> None:
        rows = self.rows
        self.tokens, self.left = [rows[i] for i in keep], [self.left[i] for i in keep]

    def extend(self, other: Reference) -> None:
        self.tokens, self.left = self.rows + other.rows, self.left + other.left

    def difference(self, tables: list[Table], block: Block) -> str:
        """Feed a block. Returns what a token sees that it should not, or does not see, as a sentence."""
        for table, layer in zip(tables, self.feed(block), strict=True):
            for i, row in enumerate(layer):
                for token, right, columns in zip(block[i], row, table[i], strict=True):
                    seen = sorted(column for column in columns if column != PAD)
                    if right and seen != right:
                        of = f" of row {i}" if len(block) > 1 else ""
                        found, wanted = (" ".join(map(str, one)) or "nothing" for one in (seen, right))
                        return f"token {token}{of} sees {found} instead of {wanted}"
        return ""
