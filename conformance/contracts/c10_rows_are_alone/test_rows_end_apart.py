"""Rows of a batch that end in different columns are what they are alone, in every architecture.

A model that takes the columns of a cache for positions fails here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mlx_lm.models import afm7, gpt2, minimax_m3_vl, phi3small

from conformance.subjects.architectures import batched, build
from conformance.subjects.families import mutant
from conformance.testing.decode.batch_blocks import (
    BLOCK,
    KEPT,
    PROMPT,
    TEXTS,
    alone,
    apart,
    as_close,
    ending_apart,
    in_step,
    prompted,
)
from conformance.testing.faults.planted import planted

pytestmark = pytest.mark.usefixtures("uncompiled")
LENGTH = BLOCK * len(KEPT)
# Not among the runnable ones, because its vocabulary is large. Its sparse layers place queries and keys in blocks.
NAMES = [*batched(), "phi3small"]


def rows_are_alone(name: str) -> bool:
    """Bit for bit if single steps and plain batches are what blocks are, and else within their noise."""
    model = build(name)
    right = [alone(model, text, [BLOCK] * len(KEPT)) for text in TEXTS]

    def noises() -> Iterator[float]:
        yield apart([alone(model, text, [1] * LENGTH) for text in TEXTS], right)
        layers = prompted(model, [text[:PROMPT] for text in TEXTS])
        yield apart(in_step(model, layers, [text[PROMPT:] for text in TEXTS], [1] * LENGTH), right)

    return as_close(apart(ending_apart(model), right), noises)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_end_apart(name: str) -> None:
    assert rows_are_alone(name)


# Columns for positions.
reuse_by_column = mutant(afm7.AFMModel.__call__, "cache[-1].offset - h.shape[1]", "keys.shape[2] - h.shape[1]")
embed_by_column = mutant(gpt2.GPT2Model.__call__, "offset = cache[0].offset", "offset = cache[0].size()")
place_by_column = mutant(minimax_m3_vl.Attention._block_mask, "mx.array(offset)[..., None, None, None]", "S - L")
spread_by_column = mutant(phi3small.Attention._block_sparse_attention, "else cache.offset", "else S")


@pytest.mark.planted
@planted(
    ("afm7", afm7.AFMModel, "__call__", reuse_by_column),
    ("gpt2", gpt2.GPT2Model, "__call__", embed_by_column),
    ("minimax_m3_vl", minimax_m3_vl.Attention, "_block_mask", place_by_column),
    ("phi3small", phi3small.Attention, "_block_sparse_attention", spread_by_column),
)
def test_a_planted_fault_is_found(where: str) -> None:
    assert not rows_are_alone(where)
