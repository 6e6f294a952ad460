"""What no drafter can beat: oracles whose drafts are always right, in the blocks that cost least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mlx_lm.draft import BlockCosts
from mlx_lm.draft.planner import MAX_AUTO_DRAFT

from conformance.lab.simulate.result import Result, Row
from conformance.lab.texts.recorded_streams import Request, Stream


def copies(request: Request) -> list[int]:
    """For each place of the answer, how many tokens from there on are a copy of one earlier place."""
    tokens = np.array([*request.prompt, *request.answer])
    start, same, found = len(request.prompt), np.zeros(len(tokens) + 1, int), []
    for end in range(len(tokens) - 1, start - 1, -1):
        # For each place, how many tokens match from it and from the end on.
        same[:-1] = np.where(tokens == tokens[end], same[1:] + 1, 0)
        found.append(min(int(same[:end].max(initial=0)), MAX_AUTO_DRAFT))
        same[-1] = 0
    return found[::-1]


def cheapest(drafts: Sequence[int], costs: BlockCosts) -> Result:
    """The blocks that cost least, if up to ``drafts[i]`` right tokens can be drafted at the place ``i``."""
    n = len(drafts)
    prices = [costs(length) for length in range(1, MAX_AUTO_DRAFT + 2)]
    best, length = [0.0] * (n + 1), [0] * n
    for i in reversed(range(n)):
        most = min(drafts[i], n - i - 1)
        best[i], length[i] = min((prices[d] + best[i + 1 + d], 1 + d) for d in range(most + 1))
    result, i = Result(), 0
    while i < n:
        result += Result(length[i], 1, length[i], prices[length[i] - 1])
        i += length[i]
    return result


def row_of(streams: Sequence[Stream], costs: BlockCosts, knows_answer: bool) -> Row:
    row = Row({})
    for one in streams:
        for request in one.requests:
            drafts = [MAX_AUTO_DRAFT] * len(request.answer) if knows_answer else copies(request)
            row.add(one, cheapest(drafts, costs))
    return row


def limits(streams: Sequence[Stream], costs: BlockCosts) -> dict[str, Row]:
    """An oracle that knows which earlier place is copied next, and one that knows the answer."""
    return {"knows the place": row_of(streams, costs, False), "knows the answer": row_of(streams, costs, True)}
