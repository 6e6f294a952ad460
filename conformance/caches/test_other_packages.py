"""A cache of another package, with upstream's methods only, is trimmed where upstream trims it, or refused."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import KVCache

from conformance.adapters import Drafts
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import prompt_of, unsteered

pytestmark = pytest.mark.contract("C2")
N, PROMPT = 14, prompt_of(21)


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


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("trimmable", [True, False])
def test_decoding_with_a_draft_model(trimmable: bool) -> None:
    model = unsteered("llama")
    layers = [Foreign(trimmable) for _ in 2 * make_cache(model)]
    drafter = Drafts("contrary", []).draft_model(model)
    steps = speculative_generate_step(mx.array(PROMPT), model, drafter, max_tokens=N, prompt_cache=list(layers))
    if not trimmable:
        with pytest.raises((ValueError, NotImplementedError), match="Foreign"):
            next(steps)
        assert {cache.offset for cache in layers} == {0}
        return
    plain = [token for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=N)]
    assert [int(token) for token, *_ in steps] == plain
    assert {cache.offset for cache in layers[: len(layers) // 2]} <= {len(PROMPT) + N - 1, len(PROMPT) + N}
