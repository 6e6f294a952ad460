"""In a batch, the tokens of a block are what they are one after the other, in every architecture.

The batches are of one row, of rows of one length, and of rows that were padded, left and joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import _extend_cache
from mlx_lm.models import bailing_hybrid, mamba2
from mlx_lm.models.base import SHORT_BLOCK
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.switch_layers import SwitchLinear

from conformance.subjects.architectures import batched, build, make_cache, outline
from conformance.subjects.families import mutant
from conformance.testing.decode.batch_blocks import PROMPT, TEXTS, alone, apart, as_close, in_step, prompted
from conformance.testing.faults.planted import planted

pytestmark = pytest.mark.usefixtures("uncompiled")
BLOCKS = [5, SHORT_BLOCK]
NAMES = batched()


def batches(model: Any) -> Iterator[tuple[str, list[Any], list[list[int]]]]:
    """The caches of batches, each with what its rows are fed next."""
    yield "one row", prompted(model, [TEXTS[0][:PROMPT]]), [TEXTS[0][PROMPT:]]
    yield "one length", prompted(model, [text[:PROMPT] for text in TEXTS]), [text[PROMPT:] for text in TEXTS]
    lengths = (PROMPT, 3, 9)
    layers = prompted(model, [text[:n] for text, n in zip(TEXTS, lengths, strict=True)])
    for layer in layers:
        layer.filter(mx.array([1, 2]))
    layers = _extend_cache(layers, prompted(model, [TEXTS[0][:6]]))
    yield "padded, left and joined", layers, [TEXTS[1][3:], TEXTS[2][9:], TEXTS[0][6:]]


def complaints(name: str, dtype: mx.Dtype) -> list[str]:
    """The batches in which a block differs from single steps. Empty if it is right."""
    model, found = build(name), []
    model.set_dtype(dtype)

    def noises() -> Iterator[float]:
        yield apart([alone(model, TEXTS[0], BLOCKS)], [alone(model, TEXTS[0], [1] * sum(BLOCKS))])

    for what, layers, texts in batches(model):
        right = in_step(model, layers, texts, [1] * sum(BLOCKS))
        if not as_close(apart(in_step(model, layers, texts, BLOCKS), right), noises):
            found.append(what)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_blocks(name: str) -> None:
    assert complaints(name, mx.float32) == []


def rounding() -> list[str]:
    """Recurrent models, whose states show in bfloat16 how they were computed. Its experts do not run on a CPU."""
    found = []
    for name in NAMES:
        model = outline(name)
        inner = [each for layer in make_cache(model) for each in getattr(layer, "caches", [layer])]
        is_recurrent = any(isinstance(layer, ArraysCache) for layer in inner)
        if is_recurrent and not any(isinstance(part, SwitchLinear) for part in model.modules()):
            found.append(name)
    return found


@pytest.mark.parametrize("name", rounding())
def test_blocks_in_bfloat16(name: str) -> None:
    assert complaints(name, mx.bfloat16) == []


# Another form for blocks that have a mask.
chunk_what_has_a_mask = mutant(
    mamba2.ssm_update, "1 < seq_len <= SHORT_BLOCK:", "1 < seq_len <= SHORT_BLOCK and mask is None:"
)
chunk_padded_attention = mutant(
    bailing_hybrid.recurrent_gla, "if L <= SHORT_BLOCK:", "if L <= SHORT_BLOCK and mask is None:"
)


@pytest.mark.planted
@planted(
    ("mamba2", mamba2, "ssm_update", chunk_what_has_a_mask),
    ("bailing_hybrid", bailing_hybrid, "recurrent_gla", chunk_padded_attention),
)
def test_a_planted_fault_is_found(where: str) -> None:
    assert "one row" in complaints(where, mx.float32)
