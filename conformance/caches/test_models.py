"""The prompt caches of whole models, whatever the code of a model fills, in any tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest

from conformance.adapters import Adapters
from conformance.oracle.compare import most
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.oracle.recorder import gap
from conformance.subjects.architectures import RESTORED
from conformance.subjects.decoded import Family, model_of, prompt_of

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
