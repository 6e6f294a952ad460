"""Fit what drafters believe before they know anything, on one half of the streams, and judge it on the other.

python -m conformance.lab.simulate.fit

It fits PRIOR of mlx_lm/draft/acceptance.py, by which the planner plans, and the guesses of the edit strategy. The two
halves are disjoint by source (conformance/lab/recorded/answers.py). Nothing is written: the shipped values stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from mlx_lm.draft import EditStrategy, acceptance, edit

from conformance.arguments import parser
from conformance.lab.simulate.run import TABLES, Make, run
from conformance.lab.streams import PARTS, Stream, load
from conformance.tables import line, table

# What was seen counts beside the shipped value, which counts as much as this many tokens.
SHIPPED_WEIGHT = 20
Prior = tuple[tuple[float, ...], ...]


def fitted(make: Make, streams: Sequence[Stream]) -> tuple[Prior, dict[Any, float]]:
    """The shares of right tokens and of right guesses in some streams, as the two priors that are shipped."""
    right, seen = Counter[Hashable](), Counter[Hashable]()
    learn, follow = acceptance.AcceptanceRates.learn, EditStrategy._follow
    # Each cell says another likelihood, so that a token tells its cell.
    marked = tuple(tuple(p + 1e-9 * (3 * i + j) for j, p in enumerate(row)) for i, row in enumerate(acceptance.PRIOR))
    cells = {p: (i, j) for i, row in enumerate(marked) for j, p in enumerate(row)}

    def count(cell: Hashable, is_right: bool) -> None:
        seen[cell] += 1
        right[cell] += is_right

    def learned(self: Any, place: int, likely: float | None, is_right: bool) -> None:
        if likely in cells:
            count(cells[likely], is_right)
        learn(self, place, likely, is_right)

    def followed(self: Any, token: int) -> None:
        for guess in self._guesses:
            count(guess.kind, self._tokens[guess.place] == token)
        follow(self, token)

    def share(cell: Hashable, shipped: float) -> float:
        return (right[cell] + SHIPPED_WEIGHT * shipped) / (seen[cell] + SHIPPED_WEIGHT)

    with (
        mock.patch.object(acceptance, "PRIOR", marked),
        mock.patch.object(acceptance.AcceptanceRates, "learn", learned),
        mock.patch.object(EditStrategy, "_follow", followed),
    ):
        for costs in TABLES.values():
            run(make, streams, costs)
    prior = tuple(tuple(share((i, j), p) for j, p in enumerate(row)) for i, row in enumerate(acceptance.PRIOR))
    return prior, {kind: share(kind, shipped) for kind, shipped in edit.PRIORS.items()}


@contextmanager
def using(prior: Prior, guesses: Mapping[Any, float]) -> Iterator[None]:
    with mock.patch.object(acceptance, "PRIOR", prior), mock.patch.object(edit, "PRIORS", dict(guesses)):
        yield


def compared(what: str, part: str, prior: Prior, guesses: Mapping[Any, float]) -> Iterator[str]:
    """A row for each table of costs: the shipped priors, the fitted one of the planner, and both fitted."""
    streams, speeds = load(what, part), []
    for priors in ((acceptance.PRIOR, edit.PRIORS), (prior, edit.PRIORS), (prior, guesses)):
        with using(*priors):
            speeds.append({name: run(EditStrategy, streams, costs).mean("speed") for name, costs in TABLES.items()})
    for name in TABLES:
        shipped, *others = (speed[name] for speed in speeds)
        gains = (f"{100 * (other / shipped - 1):+.1f} %" for other in others)
        yield line([what, part, len(streams), name, f"{shipped:.3f}", *gains])


def main() -> None:
    parser(__doc__, "python -m conformance.lab.simulate.fit").parse_args()
    prior, guesses = fitted(EditStrategy, [one for what in ("answers", "edits") for one in load(what, "fit")])
    shipped = [", ".join(f"{p:.2f}" for p in row) for row in acceptance.PRIOR]
    rows = [[2 ** (i - 1) if i else 0, *row, shipped[i]] for i, row in enumerate(prior)]
    print(table(["tokens that match", "not known", "right", "wrong", "shipped"], rows) + "\n")
    print(table(["guess", "fitted", "shipped"], ([kind, p, edit.PRIORS[kind]] for kind, p in guesses.items())) + "\n")
    print(table(["streams", "part", "how many", "costs", "shipped", "planner's prior fitted", "both fitted"]))
    for what in ("answers", "edits"):
        for part in PARTS:
            print("\n".join(compared(what, part, prior, guesses)), flush=True)


if __name__ == "__main__":
    main()
