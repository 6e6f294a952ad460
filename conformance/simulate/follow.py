"""Follow two strategies through a rename, one forward pass at a time. python -m conformance.simulate.follow

docs/drafting.md shows the table that this prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from mlx_lm.draft import EditStrategy, SuffixStrategy

from conformance.testing.arguments import parser
from conformance.testing.tables import table

SOURCE = """\
class Basket:
    def add(self, fruit):
        self.fruits.append(fruit)
        self.size += fruit.weight
        self.log(fruit)
    def free(self):
        return LIMIT - self.size
    def report(self):
        print(self.name, self.size)
        return self.size / LIMIT
"""
PROMPT = f"Rename size.\n{SOURCE}|"
ANSWER = SOURCE.replace("size", "total_weight")
LONGEST = 16


class Words:
    """A tokenizer with one token for each word."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(r" ?[A-Za-z]+|\d|\n *| +|[^\w\s]|\S", text)
        return [self._ids.setdefault(piece, len(self._ids)) for piece in pieces]

    def decode(self, tokens: list[int]) -> str:
        pieces = list(self._ids)
        return "".join(pieces[token] for token in tokens)


def steps(make: Callable[[], Any]) -> list[tuple[str, str]]:
    """For each forward pass: the drafted text that is accepted, and the token that the model adds."""
    words, strategy = Words(), make()
    strategy.observe(words.encode(PROMPT))
    answer, n, found = words.encode(ANSWER), 0, []
    while n < len(answer):
        draft = list(strategy.propose(LONGEST))
        pairs = zip(draft, answer[n:], strict=False)
        n_right = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(answer) - n))
        new = answer[n : n + n_right + 1]
        found.append((words.decode(new[:n_right]), words.decode(new[n_right:])))
        strategy.accept(n_right, len(draft))
        strategy.observe(new)
        n += len(new)
    return found


def shown() -> str:
    """A Markdown table with a row for each forward pass."""
    runs = list(zip_longest(steps(SuffixStrategy), steps(EditStrategy), fillvalue=("", "")))
    head = ["pass", *(word for name in ("suffix", "edit") for word in (f"`{name}` drafts right", "the model adds"))]
    cells = ([f"`{repr(text)[1:-1]}`" if text else "" for run in both for text in run] for both in runs)
    return table(head, ([number, *texts] for number, texts in enumerate(cells, 1)))


if __name__ == "__main__":
    parser(__doc__, "python -m conformance.simulate.follow").parse_args()
    print(shown())
