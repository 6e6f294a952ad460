"""The rows of BatchGenerator are what they are alone, without drafts, in any tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from conformance.adapters import Adapters
from conformance.oracle.compare import most
from conformance.oracle.findings import not_offered
from conformance.oracle.rows import Plain, Rows
from conformance.oracle.run import penalty
from conformance.subjects.decoded import Family, model_of, prompt_of

pytestmark = pytest.mark.usefixtures("uncompiled")
# The lengths of the prompts of three rows, and of their answers: each row leaves the batch at another step.
PROMPTS, LENGTHS = (21, 9, 14), (6, 18, 11)
# BatchGenerator makes the caches itself, and those of the last two cannot be merged.
WITHOUT = ("llama quantized", "llama quantized late", "llama max_kv_size", "llama4", "deepseek_v41")


@cache
def plain(family: Family) -> Plain:
    return Plain(model_of(family))


def compare(family: Family, late: int = 0, processors: tuple[Any, ...] = (None, None, None)) -> None:
    """The last row joins when the others have so many tokens."""
    batch = Rows(plain(family), most(family))
    for i, (n, longest, processor) in enumerate(zip(PROMPTS, LENGTHS, processors, strict=True)):
        while i == 2 and all(len(row.tokens) < late for row in batch.running.values()):
            batch.step()
        try:
            batch.insert(plain(family).ask(prompt_of(30)[i : i + n], longest, processor=processor))
        except TypeError as error:
            not_offered(f"BatchGenerator.insert: {error}")
    batch.finish()


@pytest.fixture(autouse=True)
def rests_on(request: pytest.FixtureRequest, about: Callable[..., None]) -> None:
    family = request.getfixturevalue("family")
    batched = {"KVCache": "BatchKVCache", "RotatingKVCache": "BatchRotatingKVCache"}
    about(family, *(batched[name] for name in family.rests_on() if name in batched))


@pytest.mark.asked("C10 rows")
def test_rows(family: Family, adapter: Adapters) -> None:
    """Rows of different lengths that end one after the other, and of which the last one joins late."""
    compare(family)
    compare(family, late=4)


@pytest.mark.contract("C5")
@pytest.mark.asked("C5 processors of a row")
def test_processors_of_one_row(family: Family, adapter: Adapters) -> None:
    """The processors of a greedy row act on this row, and on no other."""
    compare(family, processors=(None, lambda: penalty, None))
