"""A cache of another package, with upstream's methods only, is trimmed where upstream trims it, or refused."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, can_trim_prompt_cache, trim_prompt_cache

from conformance.adapters import Drafts
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import GENERATE, PROMPT, model_of, seeded

pytestmark = pytest.mark.contract("C2")
N, FAMILY = 14, "llama"


class Foreign:
    """A cache that grows, with no method that upstream's caches lack."""

    def __init__(self, trimmable: bool = True) -> None:
        self._cache, self._trimmable = KVCache(), trimmable

    def __getattr__(self, name: str) -> Any:
        if name not in ("offset", "state", "update_and_fetch", "make_mask"):
            raise AttributeError(name)
        return getattr(self._cache, name)

    def is_trimmable(self) -> bool:
        return self._trimmable

    def trim(self, n: int) -> int:
        n = min(n, self._cache.offset)
        self._cache.offset -= n
        return n


def decode(layers: list[Any], kind: str) -> list[int]:
    steps = GENERATE.speculative_generate_step(
        mx.array(PROMPT),
        model_of(FAMILY),
        Drafts(kind, []).draft_model(model_of(FAMILY).model),
        max_tokens=N,
        prompt_cache=layers,
    )
    return [int(token) for token, *_ in steps]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", ["similar", "contrary"])
def test_is_decoded_with_a_draft_model(kind: str) -> None:
    model, drafter = model_of(FAMILY), Drafts(kind, []).draft_model(model_of(FAMILY).model)
    layers = [Foreign() for _ in make_cache(model) + make_cache(drafter)]
    plain = [int(token) for token, *_ in seeded(model, PROMPT, N)]
    assert decode(list(layers), kind) == plain
    n = len(make_cache(model))
    assert {cache.offset for cache in layers[:n]} <= {len(PROMPT) + N - 1, len(PROMPT) + N}


def test_one_that_cannot_be_trimmed_is_refused() -> None:
    layers = [Foreign(trimmable=False) for _ in make_cache(model_of(FAMILY)) + make_cache(model_of(FAMILY))]
    with pytest.raises((ValueError, NotImplementedError), match="Foreign"):
        decode(layers, "similar")
    assert {cache.offset for cache in layers} == {0}


def test_a_prompt_cache_is_trimmed_as_in_upstream() -> None:
    layers: list[Any] = [Foreign(), Foreign()]
    rows = mx.zeros((1, 1, 5, 4))
    for cache in layers:
        cache.update_and_fetch(rows, rows)
    assert can_trim_prompt_cache(layers)
    assert trim_prompt_cache(layers, 2) == 2
    assert trim_prompt_cache(layers, 9) == 3
    assert [cache.offset for cache in layers] == [0, 0]
