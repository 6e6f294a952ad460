"""The prompt caches of whole models, whatever the code of a model fills, in any tree, and caches of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import KVCache

from conformance.adapters import Adapters, Drafts
from conformance.oracle.compare import most
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.oracle.recorder import gap
from conformance.subjects.architectures import RESTORED, make_cache
from conformance.subjects.decoded import Family, model_of, prompt_of, unsteered

pytestmark = pytest.mark.usefixtures("uncompiled")

# What is fed and taken back, and what is fed afterwards.
WRONG = ([5], [5, 6, 7], [5, 6, 7, 8, 9])
PROBES = ([1], [2, 3, 4], [5])


def feed(family: Family, caches: list[Any], tokens: list[int]) -> mx.array:
    logits: mx.array = model_of(family)(mx.array([tokens]), cache=caches)
    mx.eval(logits)
    return logits[0, -1]


def pairs(family: Family, adapter: Adapters, *needs: str) -> Iterator[tuple[int, list[int], list[Any], list[Any]]]:
    """For each prompt, and each end that is to be taken back: two lists of caches that were fed the prompt."""
    if lacking := [name for name in needs if name not in adapter]:
        not_offered(f"the adapter has no {' and no '.join(lacking)}")
    for length in family.prompts:
        for wrong in WRONG:
            both = family.caches(), family.caches()
            for held in both:
                feed(family, held, prompt_of(length))
            yield length, wrong, *both


def compare(family: Family, caches: list[Any], spared: list[Any], what: str) -> None:
    for probe in PROBES:
        logits = [feed(family, held, probe) for held in (caches, spared)]
        if (off := gap(logits[:1], logits[1:])) > most(family):
            broken(f"{what} the logits are off by {off:.2g}")


@pytest.mark.asked("C1 snapshot")
def test_model_snapshot(family: Family, adapter: Adapters, about: Callable[..., None]) -> None:
    """Caches that are put back give the logits of caches that never saw the rest."""
    about(family)
    for length, wrong, caches, spared in pairs(family, adapter, "snapshot", "restore"):
        taken = adapter.snapshot(caches)
        feed(family, caches, wrong)
        adapter.restore(caches, taken)
        compare(family, caches, spared, f"{length} tokens, a snapshot, {len(wrong)} more: when it is put back,")


@pytest.mark.asked("C2 trim")
def test_model_trim(family: Family, adapter: Adapters, about: Callable[..., None]) -> None:
    """A token and a wrong end are fed, and the end is dropped."""
    about(family)
    if family.model in RESTORED:
        not_offered("its cache is put back instead, as C2 allows")
    shown = 0
    for length, wrong, caches, spared in pairs(family, adapter, "can_trim", "trim"):
        n = len(wrong)
        if "snapshot" in adapter:
            # It tells a cache that the next block may be a draft.
            adapter.snapshot(caches)
        feed(family, caches, [2, *wrong])
        if adapter.can_trim(caches, n):
            dropped = adapter.trim(caches, n)
            if isinstance(dropped, int) and dropped != n:
                broken(f"can_trim({n}) says yes, and trim({n}) returns {dropped}")
            feed(family, spared, [2])
            compare(family, caches, spared, f"{length} tokens, a block of {n + 1}, trim({n}):")
            shown += 1
    if not shown:
        not_shown("it says of every trim that it cannot")


# The tokens of an answer, and its prompt.
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


@pytest.mark.contract("C2")
@pytest.mark.parametrize("trimmable", [True, False])
def test_decoding_with_a_cache_of_another_package(trimmable: bool) -> None:
    """With upstream's methods only, it is trimmed where upstream trims it, or refused."""
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
