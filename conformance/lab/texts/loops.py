"""Answers that run into a loop, which flatter every drafter."""

from __future__ import annotations

from collections.abc import Sequence


def loops(tokens: Sequence[int]) -> bool:
    """Whether the end repeats what stands right before it, three times or more."""
    sizes = range(1, len(tokens) // 3 + 1)
    return any(len(set(map(tuple, (tokens[-n:], tokens[-2 * n : -n], tokens[-3 * n : -2 * n])))) == 1 for n in sizes)
