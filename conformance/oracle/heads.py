"""What the cache of a head holds: each token but the first, and the hidden state that it was drawn from."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from conformance.drafters import Head
from conformance.oracle.findings import broken
from conformance.oracle.run import Case, N, Run
from conformance.subjects.decoded import Family, model_of


def held(headed: Any, caches: list[Any]) -> tuple[list[int], list[float]]:
    """The tokens but the first, which a head is shown for its next draft, and the digests of their hidden states."""
    headed.draft(mx.array([[0]]), caches, 1)
    keys, values = (x[0, 0, :, 0] for x in caches[-1][1].keys_and_values())
    return keys.astype(mx.int32).tolist(), values.tolist()


def compare_head(case: Case, got: Run) -> None:
    """A head holds the tokens that were kept and no other, and was shown the hidden state of each."""
    from mlx_lm.draft import HeadedModel

    # A quantized cache of keys and values shows other numbers.
    if got.drafts is None or case.family.options:
        return
    if not got.drafts.left:
        broken("the cache of the head never reaches the caller")
    # A draw that fails comes behind a token that was fed, as in plain decoding.
    n = len(got.text) + (case.end == "failure")
    text = case.plain(N).text
    tokens, shown = held(HeadedModel(model_of(case.family), Head([])), [*got.cache, *got.drafts.left])
    if tokens != text[1:n]:
        broken(f"the head holds {len(tokens)} tokens that end with {tokens[-6:]}, instead of {n - 1}, {text[:n][-6:]}")
    right = digests(case.family, tuple(text), case.length, case.prefill)
    for i, (a, b) in enumerate(zip(shown, right, strict=False)):
        if abs(a - b) > 2e-3:
            broken(f"the head is shown another hidden state with token {i + 1} of {n}, off by {abs(a - b):.2g}")


@cache
def digests(family: Family, text: tuple[int, ...], length: int, prefill: int) -> list[float]:
    """What the head has to be shown with each token of plain decoding: what the last layer gave before it."""
    model, caches, seen, found = model_of(family), family.caches(), list[Any](), list[float]()
    layer = type(model.layers[-1])
    call = layer.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(call(self, *args, **kwargs))
        return seen[-1]

    with patch.object(layer, "__call__", noted):
        for start, end in pairwise([*range(0, length - 1, prefill), *range(length - 1, len(text) + 1)]):
            model(mx.array([text[start:end]]), cache=caches)
            hidden = seen[-1][0] if isinstance(seen[-1], tuple) else seen[-1]
            found += hidden[0].astype(mx.float32).sum(axis=-1).tolist()
    return found
