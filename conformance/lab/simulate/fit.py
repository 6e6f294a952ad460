"""Fit what drafters believe before they know anything, on one half of the streams, and judge it on the other.

python -m conformance.lab.simulate.fit

It fits PRIOR of mlx_lm/draft/acceptance.py, by which the planner plans, and the guesses of the edit strategy. The two
halves are disjoint by source (conformance/lab/recorded/answers.py). Nothing is written: the shipped values stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from mlx_lm.draft import EditStrategy, acceptance, edit

from conformance.lab.recorded.streams import PARTS, load
from conformance.lab.simulate.__main__ import TABLES, run
from conformance.lab.texts.recorded_streams import Stream
from conformance.tables import line, table
from conformance.testing.arguments import parser

# What was seen counts beside the shipped value, which counts as much as this many tokens.
SHIPPED_WEIGHT = 20
COLUMNS = (None, True, False)
Prior = tuple[tuple[float, ...], ...]
Cell = TypeVar("Cell")
# (right, seen) by what a prior is told apart by.
Counts = dict[Cell, tuple[int, int]]


def count(counts: Counts[Cell], cell: Cell, right: bool) -> None:
    n_right, n_seen = counts.get(cell, (0, 0))
    counts[cell] = n_right + right, n_seen + 1


def share(counts: Counts[Cell], cell: Cell, shipped: float) -> float:
    n_right, n_seen = counts.get(cell, (0, 0))
    return (n_right + SHIPPED_WEIGHT * shipped) / (n_seen + SHIPPED_WEIGHT)


def fitted(make: Callable[[], Any], streams: Sequence[Stream]) -> tuple[Prior, dict[Any, float]]:
    """The shares of right tokens and of right guesses in some streams, as the two priors that are shipped."""
    tokens: Counts[tuple[int, int]] = {}
    guesses: Counts[Any] = {}
    learn, follow = acceptance.AcceptanceRates.learn, EditStrategy._follow
    # Each cell says another likelihood, so that a token tells its cell.
    marked = tuple(
        tuple(p + 1e-9 * (len(COLUMNS) * i + j) for j, p in enumerate(row)) for i, row in enumerate(acceptance.PRIOR)
    )
    cells = {p: (i, j) for i, row in enumerate(marked) for j, p in enumerate(row)}

    def learned(self: Any, place: int, likely: float | None, right: bool) -> None:
        if likely in cells:
            count(tokens, cells[likely], right)
        learn(self, place, likely, right)

    def followed(self: Any, token: int) -> None:
        for guess in self._guesses:
            count(guesses, guess.kind, self._tokens[guess.place] == token)
        follow(self, token)

    with (
        mock.patch.object(acceptance, "PRIOR", marked),
        mock.patch.object(acceptance.AcceptanceRates, "learn", learned),
        mock.patch.object(EditStrategy, "_follow", followed),
    ):
        for costs in TABLES.values():
            run(make, streams, costs)
    prior = tuple(
        tuple(share(tokens, (i, j), shipped) for j, shipped in enumerate(row)) for i, row in enumerate(acceptance.PRIOR)
    )
    return prior, {kind: share(guesses, kind, shipped) for kind, shipped in edit.PRIORS.items()}


@contextmanager
def using(prior: Prior, guesses: Mapping[Any, float]) -> Iterator[None]:
    with mock.patch.object(acceptance, "PRIOR", prior), mock.patch.object(edit, "PRIORS", dict(guesses)):
        yield


def speeds(streams: Sequence[Stream]) -> dict[str, float]:
    """The mean speed of the edit strategy over the kinds of work, by the table of costs."""
    return {name: run(EditStrategy, streams, costs).mean("speed") for name, costs in TABLES.items()}


def compared(what: str, part: str, prior: Prior, guesses: Mapping[Any, float]) -> Iterator[str]:
    """A row for each table of costs: the shipped priors, the fitted one of the planner, and both fitted."""
    streams = load(what, part)
    shipped = speeds(streams)
    with using(prior, edit.PRIORS):
        planner = speeds(streams)
    with using(prior, guesses):
        both = speeds(streams)
    for name, speed in shipped.items():
        gains = (f"{100 * (other[name] / speed - 1):+.1f} %" for other in (planner, both))
        yield line([what, part, len(streams), name, f"{speed:.3f}", *gains])


def main() -> None:
    parser(__doc__, "python -m conformance.lab.simulate.fit").parse_args()
    prior, guesses = fitted(EditStrategy, [one for what in ("answers", "edits") for one in load(what, "fit")])
    matches = [2 ** (i - 1) if i else 0 for i in range(len(prior))]
    shipped = [", ".join(f"{p:.2f}" for p in row) for row in acceptance.PRIOR]
    rows = [[n, *row, before] for n, row, before in zip(matches, prior, shipped, strict=True)]
    print(table(["tokens that match", "not known", "right", "wrong", "shipped"], rows) + "\n")
    print(table(["guess", "fitted", "shipped"], ([kind, p, edit.PRIORS[kind]] for kind, p in guesses.items())) + "\n")
    print(table(["streams", "part", "how many", "costs", "shipped", "planner's prior fitted", "both fitted"]))
    for what in ("answers", "edits"):
        for part in PARTS:
            print("\n".join(compared(what, part, prior, guesses)), flush=True)


if __name__ == "__main__":
    main()
