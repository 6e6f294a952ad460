"""Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def number(value: Any, digits: int = 2) -> str:
    """A number as tables show it, a dash for one that is not known, and any other text as it is."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def line(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(number, cells))} |"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]] = ()) -> str:
    """Without rows, the head of a table whose lines are printed as they come."""
    head = list(head)
    return "\n".join(map(line, [head, ["---"] * len(head), *rows]))
