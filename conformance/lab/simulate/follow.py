"""Follow two strategies through a rename, one forward pass at a time. python -m conformance.lab.simulate.follow

docs/drafting.md shows the table that this prints.
"""

from __future__ import annotations

import re
from itertools import zip_longest

from mlx_lm.draft import EditStrategy, SuffixStrategy

from conformance.arguments import parser
from conformance.lab.simulate.run import Make
from conformance.tables import table

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
TEXTS = (f"Rename size.\n{SOURCE}|", SOURCE.replace("size", "total_weight"))
LONGEST = 16


def steps(make: Make) -> list[tuple[str, str]]:
    """For each forward pass: the drafted text that is accepted, and the token (a word) that the model adds."""
    prompt, answer = (re.findall(r" ?[A-Za-z]+|\d|\n *| +|[^\w\s]|\S", text) for text in TEXTS)
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(prompt + answer))}
    strategy, wanted, found = make(), [ids[piece] for piece in answer], []
    strategy.begin([ids[piece] for piece in prompt])
    while wanted:
        draft = strategy.propose(LONGEST)
        n = next((i for i, pair in enumerate(zip(draft, wanted, strict=False)) if len(set(pair)) > 1), len(draft))
        found.append(("".join(answer[:n]), "".join(answer[n : n + 1])))
        strategy.accept(n, len(draft))
        strategy.observe(wanted[: n + 1])
        answer, wanted = answer[n + 1 :], wanted[n + 1 :]
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
