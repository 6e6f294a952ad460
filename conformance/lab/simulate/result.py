"""What a simulated strategy did, and the tables that show it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import geometric_mean

from conformance.lab.texts.recorded_streams import Stream
from conformance.tables import table

# A stream needs this many tokens to count as the worst one: in a shorter one a single draft weighs too much.
LEAST = 60


@dataclass
class Result:
    """How many tokens came out, forward passes ran and tokens were fed, and the cost in passes of one token."""

    emitted: int = 0
    forwards: int = 0
    fed: int = 0
    spent: float = 0.0

    def __add__(self, other: Result) -> Result:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Result(*(a + b for a, b in pairs))

    @property
    def speed(self) -> float:
        return self.emitted / self.spent

    @property
    def tokens_a_forward(self) -> float:
        return self.emitted / self.forwards

    @property
    def fed_a_token(self) -> float:
        return self.fed / self.emitted

    @property
    def wrong_a_right(self) -> float:
        """Rejected drafted tokens for each accepted one."""
        return (self.fed - self.emitted) / max(self.emitted - self.forwards, 1)


@dataclass
class Row:
    """The results of one strategy for each workload, and its worst stream."""

    by_name: dict[str, Result]
    worst: float = math.inf
    worst_name: str = ""

    def add(self, stream: Stream, result: Result) -> None:
        self.by_name[stream.name] = self.by_name.get(stream.name, Result()) + result
        if stream.n_answered >= LEAST and result.speed < self.worst:
            self.worst, self.worst_name = result.speed, f"{stream.name}, {stream.n_answered} tokens"

    def mean(self, value: str) -> float:
        """Of the kinds of work: names in brackets are none."""
        return geometric_mean(getattr(result, value) for name, result in self.by_name.items() if name[0] != "(")


TITLES = {
    "speed": "Implied speed",
    "tokens_a_forward": "Tokens a forward pass",
    "fed_a_token": "Tokens fed for a token of the answer",
}


def show(rows: dict[str, Row], value: str) -> str:
    """A Markdown table with a row for each workload and a column for each strategy."""
    names = next(iter(rows.values())).by_name
    lines = [[name, *(getattr(row.by_name[name], value) for row in rows.values())] for name in names]
    lines.append(["geometric mean", *(row.mean(value) for row in rows.values())])
    if value == "speed":
        lines.append(["worst stream", *(f"{row.worst:.3f}" for row in rows.values())])
        lines.append(["which", *(row.worst_name for row in rows.values())])
    return table(["", *rows], lines)
