"""What a command prints of its drafts, without the colors of a terminal."""

from __future__ import annotations

import re
from typing import NamedTuple

CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02\r]")
_LINE = re.compile(r"Drafting: (\w+), (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward")


class Drafting(NamedTuple):
    strategy: str
    drafted: int
    accepted: int
    rate: float  # tokens for each forward pass


def drafting(printed: str) -> Drafting | None:
    """The line about drafts, if there is one."""
    found = _LINE.search(printed)
    return found and Drafting(found[1], int(found[2]), int(found[3]), float(found[4]))
