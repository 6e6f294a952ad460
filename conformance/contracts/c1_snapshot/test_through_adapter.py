"""The prompt caches, asked through the adapters that fit, as scripts/judge.sh does: C1, C2, blocks and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapters
from conformance.judging.decodes import near
from conformance.judging.programs import KINDS, Kind, blocks, check, filters, small_steps, snapshots, trims
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.oracle.recorder import gap
from conformance.subjects.decoded import Family, model_of, prompt_of

# What is fed and taken back, and what is fed afterwards.
WRONG = ([5], [5, 6, 7], [5, 6, 7, 8, 9])
PROBES = ([1], [2, 3, 4], [5])
# Of a recurrent batch: tokens that are fed before the snapshot and after it, and the block whose mask is compared.
BEFORE, AFTER, BLOCK = (0, 1, 3), (1, 4), 6

of_each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


@pytest.fixture(autouse=True)
def short(uncompiled: None) -> Iterator[None]:
    with small_steps():
        yield


@pytest.mark.contract("C4")
@of_each_kind
def test_blocks(kind: Kind, adapter: Adapters, about: Callable[..., None]) -> None:
    """What each token of a block sees is what single tokens see."""
    about(kind.name, *kind.rests_on)
    check(kind, adapter, blocks())


@pytest.mark.contract("C2")
@of_each_kind
def test_trim(kind: Kind, adapter: Adapters, about: Callable[..., None]) -> None:
    """What can_trim allows, trim drops exactly, and says so."""
    about(kind.name, *kind.rests_on)
    check(kind, adapter, trims())


@of_each_kind
def test_snapshot(kind: Kind, adapter: Adapters, about: Callable[..., None]) -> None:
    """A cache that is restored behaves like one that never saw the rest."""
    about(kind.name, *kind.rests_on)
    check(kind, adapter, snapshots())


@pytest.mark.contract("C10")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if len(kind.left) > 1])
def test_filter(kind: Kind, adapter: Adapters, about: Callable[..., None]) -> None:
    """A row that stays in a batch sees what it saw."""
    about(kind.name, *kind.rests_on)
    check(kind, adapter, filters())


def offered(adapter: Adapters, *needs: str) -> None:
    if lacking := [name for name in needs if name not in adapter]:
        not_offered(f"the adapter has no {' and no '.join(lacking)}")


def test_rows_of_a_recurrent_cache(adapter: Adapters, about: Callable[..., None]) -> None:
    """How much of each row is padding, and where it ends."""
    about("ArraysCache")
    offered(adapter, "snapshot", "restore")
    for before in BEFORE:
        for after in AFTER:
            # Two rows, the second one padded on both sides.
            caches = [cache_module.ArraysCache(1, left_padding=[0, 2])]
            caches[0].prepare(lengths=[9, 5])
            caches[0][0] = mx.zeros((2, 1))
            caches[0].advance(before)
            right = mask_of(caches)
            taken = adapter.snapshot(caches)
            for _ in range(2):
                caches[0].advance(after)
                adapter.restore(caches, taken)
                if mask_of(caches) != right:
                    broken(f"{before} tokens, a snapshot, {after} more: the mask of what follows is another one")


def mask_of(caches: list[Any]) -> Any:
    mask = caches[0].make_mask(BLOCK)
    return None if mask is None else mask.tolist()


def feed(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    logits: mx.array = model(mx.array([tokens]), cache=caches)
    mx.eval(logits)
    return logits[0, -1]


def fed(family: Family, length: int) -> tuple[list[Any], list[Any]]:
    both = family.caches(), family.caches()
    for held in both:
        feed(model_of(family), held, prompt_of(length))
    return both


def compare(family: Family, caches: list[Any], spared: list[Any], what: str) -> None:
    for probe in PROBES:
        logits = [feed(model_of(family), held, probe) for held in (caches, spared)]
        if (off := gap(logits[:1], logits[1:])) > near(family):
            broken(f"{what} the logits are off by {off:.2g}")


def test_model_snapshot(family: Family, adapter: Adapters, about: Callable[..., None]) -> None:
    """Caches that are put back give the logits of caches that never saw the rest, whatever a model's code fills."""
    about(family)
    offered(adapter, "snapshot", "restore")
    for length in family.prompts:
        for wrong in WRONG:
            caches, spared = fed(family, length)
            taken = adapter.snapshot(caches)
            feed(model_of(family), caches, wrong)
            adapter.restore(caches, taken)
            compare(family, caches, spared, f"{length} tokens, a snapshot, {len(wrong)} more: when it is put back,")


def trimmed(adapter: Adapters, model: Any, caches: list[Any], wrong: list[int]) -> bool:
    """Feed a token and a wrong end, and drop the end; False if that is refused. A snapshot tells that it may be."""
    if "snapshot" in adapter:
        adapter.snapshot(caches)
    feed(model, caches, [2, *wrong])
    if not adapter.can_trim(caches, len(wrong)):
        return False
    dropped = adapter.trim(caches, len(wrong))
    if isinstance(dropped, int) and dropped != len(wrong):
        broken(f"can_trim({len(wrong)}) says yes, and trim({len(wrong)}) returns {dropped}")
    return True


@pytest.mark.contract("C2")
def test_model_trim(family: Family, adapter: Adapters, about: Callable[..., None]) -> None:
    about(family)
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
        not_shown("it says of every trim that it cannot")
