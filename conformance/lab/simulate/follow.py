"""Follow two strategies through a rename, one forward pass at a time. python -m conformance.lab.simulate.follow

docs/drafting.md shows the table that this prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from mlx_lm.draft import EditStrategy, SuffixStrategy

from conformance.tables import table
from conformance.testing.arguments import parser

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


def steps(make: Callable[[], Any]) -> list[tuple[str, str]]:
    """For each forward pass: the drafted text that is accepted, and the token (a word) that the model adds."""
    prompt, answer = (re.findall(r" ?[A-Za-z]+|\d|\n *| +|[^\w\s]|\S", text) for text in (PROMPT, ANSWER))
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(prompt + answer))}
    strategy, n, found = make(), 0, []
    strategy.begin([ids[piece] for piece in prompt])
    while n < len(answer):
        draft, wanted = strategy.propose(LONGEST), [ids[piece] for piece in answer[n:]]
        n_right = next((i for i, pair in enumerate(zip(draft, wanted, strict=False)) if len(set(pair)) > 1), len(draft))
        n_right = min(n_right, len(wanted))
        found.append(("".join(answer[n : n + n_right]), "".join(answer[n + n_right :][:1])))
        strategy.accept(n_right, len(draft))
        strategy.observe(wanted[: n_right + 1])
        n += n_right + 1
    return found


def shown() -> str:
    """A Markdown table with a row for each forward pass."""
    runs = list(zip_longest(steps(SuffixStrategy), steps(EditStrategy), fillvalue=("", "")))
    head = ["pass", *(word for name in ("suffix", "edit") for word in (f"`{name}` drafts right", "the model adds"))]
    cells = ([f"`{repr(text)[1:-1]}`" if text else "" for run in both for text in run] for both in runs)
    return table(head, ([number, *texts] for number, texts in enumerate(cells, 1)))


if __name__ == "__main__":
    parser(__doc__, "python -m conformance.lab.simulate.follow").parse_args()
    print(shown())
