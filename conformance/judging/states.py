"""C1 and C2 of the caches of whole models: recurrent states and all that only a model's own code fills."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx

from conformance.adapters import Adapter
from conformance.judging.caches import BLOCKS, SNAPSHOT, TRIM
from conformance.judging.cases import Broken, Case, NotAsked, NotOffered, NotShown
from conformance.judging.decodes import near
from conformance.judging.models import FAMILIES, Family, gap, model_of, prompt_of

# What is fed and taken back, and what is fed afterwards.
WRONG = ([5], [5, 6, 7], [5, 6, 7, 8, 9])
PROBES = ([1], [2, 3, 4], [5])


def feed(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    logits: mx.array = model(mx.array([tokens]), cache=caches)
    mx.eval(logits)
    return logits[0, -1]


def put_back(adapter: Adapter, model: Any, caches: list[Any], wrong: list[int]) -> None:
    taken = adapter.snapshot(caches)
    feed(model, caches, wrong)
    adapter.restore(caches, taken)


def trimmed(adapter: Adapter, model: Any, caches: list[Any], wrong: list[int]) -> bool:
    """Feed a token and a wrong end, and drop the end; False if that is refused. A snapshot tells that it may be."""
    if "snapshot" in adapter:
        adapter.snapshot(caches)
    feed(model, caches, [2, *wrong])
    if not adapter.can_trim(caches, len(wrong)):
        return False
    dropped = adapter.trim(caches, len(wrong))
    if isinstance(dropped, int) and dropped != len(wrong):
        raise Broken(f"can_trim({len(wrong)}) says yes, and trim({len(wrong)}) returns {dropped}")
    return True


def compare(family: Family, caches: list[Any], spared: list[Any], what: str) -> None:
    for probe in PROBES:
        logits = [feed(model_of(family), held, probe) for held in (caches, spared)]
        if (off := gap(logits[:1], logits[1:])) > near(family):
            raise Broken(f"{what} the logits are off by {off:.2g}")


def snapshots(adapter: Adapter, family: Family) -> None:
    """The caches that are put back give the logits of caches that never saw the rest."""
    offered(adapter, "snapshot", "restore")
    for length in family.prompts:
        for wrong in WRONG:
            caches, spared = fed(family, length)
            put_back(adapter, model_of(family), caches, wrong)
            compare(family, caches, spared, f"{length} tokens, a snapshot, {len(wrong)} more: when it is put back,")


def trims(adapter: Adapter, family: Family) -> None:
    offered(adapter, "can_trim", "trim")
    shown = 0
    for length in family.prompts:
        for wrong in WRONG:
            caches, spared = fed(family, length)
            if trimmed(adapter, model_of(family), caches, wrong):
                feed(model_of(family), spared, [2])
                compare(family, caches, spared, f"{length} tokens, a block of {len(wrong) + 1}, trim({len(wrong)}):")
                shown += 1
    if not shown:
        raise NotShown("it says of every trim that it cannot")


def fed(family: Family, length: int) -> tuple[list[Any], list[Any]]:
    both = family.caches(), family.caches()
    for held in both:
        feed(model_of(family), held, prompt_of(length))
    return both


def offered(adapter: Adapter, *needs: str) -> None:
    if lacking := [name for name in needs if name not in adapter]:
        raise NotOffered(f"the adapter has no {' and no '.join(lacking)}")


def classes(family: Family) -> list[str]:
    try:
        return family.classes()
    except (NotOffered, NotAsked):
        return []


def state_of(family: Family) -> list[str]:
    """What the decoding of a model rests on."""
    held = [*classes(family), *(["QuantizedKVCache"] if family.options else [])]
    found = [f"{contract}: {name}" for name in held for contract in (BLOCKS, TRIM, SNAPSHOT)]
    return found + [f"{contract}: the model {family.name}" for contract in (TRIM, SNAPSHOT)]


def cases(adapter: Adapter) -> Iterator[Case]:
    for family in FAMILIES:
        if family.options:
            continue
        about, held = f"the model {family.name}", classes(family)
        rests = [f"{contract}: {name}" for name in held for contract in (BLOCKS, TRIM)]
        yield Case(TRIM, about, partial(trims, adapter, family), tuple(rests))
        rests = [f"{contract}: {name}" for name in held for contract in (BLOCKS, SNAPSHOT)]
        yield Case(SNAPSHOT, about, partial(snapshots, adapter, family), (*rests, f"{TRIM}: {about}"))
