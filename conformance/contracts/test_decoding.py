"""Drafted decoding is plain decoding, for each kind of model and each drafter, however it ends: C3, C4, C5 and C8.

Every row is one decode, and all that is seen of it is compared. Each model meets each drafter in one of the tables,
every second one with samplers, and llama in all; what else a row has goes round, so that both meet each of the others.
CONFORMANCE_PROFILE=full asks every pair in every table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import pytest

from conformance.adapters import Adapters
from conformance.oracle.compare import check
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.profiles import FULL
from conformance.oracle.run import PROCESSORS, SAMPLERS, Case, N, decode_plain
from conformance.plugin import note
from conformance.subjects.architectures import RESTORED
from conformance.subjects.decoded import WINDOW, Family, K

pytestmark = pytest.mark.usefixtures("uncompiled")

ENDS = [
    *(("close", n) for n in (1, 2, 4, 7, 9)),
    *(("limit", n) for n in (1, 5, 6, 0)),
    *(("throw", 4), ("consumer", 5), ("close without a limit", 9), ("failure", 5), ("failure", 8)),
    *(("stream's limit", 8), ("end token", 4), ("stream's close", 2), ("end token", 6)),
]
# Below, at and past the window, and where a cache of keys grows.
LENGTHS = [1, 2, WINDOW - K - 1, WINDOW - 1, WINDOW, WINDOW + 2, 2 * WINDOW + 1]
GROWTH = [256 - N - 1, 256 - K - 1, 256 - 2, 256 - 1, 256, 256 + 1]


def around(values: Sequence[Any], i: int, j: int) -> Any:
    return values[(i + 3 * j) % len(values)]


def pairs(
    families: list[Family], drafters: list[str], part: int, parts: int = 4
) -> Iterator[tuple[int, Family, int, str]]:
    """All pairs of llama, and those of the rest whose turn it is. A tree with few drafters has more of them, or all."""
    parts = 1 if FULL or len(drafters) == 1 else 2 if len(drafters) < 6 else parts
    for (i, family), (j, drafter) in product(enumerate(families), enumerate(drafters)):
        # So that the pairs of a model, or of a drafter, have different places in what goes round.
        if family.name == "llama" or (i + i // 4 + j + j // 4 - part) % parts == 0:
            yield i, family, j, drafter


def parity(families: list[Family], drafters: list[str]) -> Iterator[Case]:
    for i, family, j, drafter in pairs(families, drafters, 1):
        how = {"prefill": around([2048, 1, 4, 20, 7], j, i), "gated": (i + j) % 3 == 0}
        yield Case(family, drafter, around(family.prompts, j, i), **how)


def seeds(families: list[Family], drafters: list[str]) -> Iterator[Case]:
    for i, family, j, drafter in pairs(families, drafters, 0, 8):
        how = {"sampler": around(list(SAMPLERS), j, i), "processors": around(["", "", *PROCESSORS], i, j)}
        end, n = around([("limit", N), ("close", 4), ("limit", N), ("close", 8), ("limit", N)], i, j)
        yield Case(family, drafter, end=end, n=n, gated=(i + j) % 3 == 0, **how)


def exits(families: list[Family], drafters: list[str]) -> Iterator[Case]:
    for i, family, j, drafter in pairs(families, drafters, 2):
        # 7 has no factor of their number: a model meets each end, or as many as it meets drafters.
        for end, n in (ENDS[(5 * i + 7 * j + more) % len(ENDS)] for more in (0, 9)):
            yield Case(family, drafter, around(family.prompts, j, i), end, n)


def processors(families: list[Family], drafters: list[str]) -> Iterator[Case]:
    for i, family, j, drafter in pairs(families, drafters, 3):
        end, n = around([("limit", N), ("close", 4), ("limit", N)], j, i)
        sampler = "watched" if (i + j) % 2 else ""
        yield Case(family, drafter, end=end, n=n, sampler=sampler, processors=around(list(PROCESSORS), i, j))


def counts(families: list[Family], drafters: list[str]) -> Iterator[Case]:
    depths = [drafter for drafter in drafters if drafter.endswith(" right")]
    for i, family, j, _ in pairs(families, list(map(str, LENGTHS)) if depths else [], 0):
        # In a text that goes round so early, blocks and steps choose others of equal keys in a sparse selection.
        if not (family.model in RESTORED and LENGTHS[j] < min(family.prompts)):
            yield Case(family, around(depths, j, i), LENGTHS[j], n=7)
    for j, length in enumerate(GROWTH if depths else ()):
        yield Case(families[0], around(depths, j, 0), length, n=7)


TABLES: dict[str, Callable[[list[Family], list[str]], Iterator[Case]]] = {
    "test_parity": parity,
    "test_seeds": seeds,
    "test_exits": exits,
    "test_processors": processors,
    "test_counts": counts,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        plugin: Any = metafunc.config.pluginmanager.get_plugin("parameters")
        cases = TABLES[metafunc.function.__name__](plugin.families, list(plugin.adapters.drafters))
        # What a loop does not take is left out, so that the rest of the row is asked.
        taken = {name for name in plugin.adapters.drafters if "prefill_step_size" in plugin.adapters.options(name)}
        cases = (case if case.drafter in taken else replace(case, prefill=2048) for case in cases)
        metafunc.parametrize("case", list(dict.fromkeys(cases)), ids=str)


@pytest.fixture(autouse=True)
def rests_on(request: pytest.FixtureRequest, about: Callable[..., None]) -> None:
    case = request.node.callspec.params.get("case")
    about(case.family if case else request.getfixturevalue("family"))


def ask(case: Case, adapter: Adapters, contract: str) -> None:
    if case.processors and case.plain(N).tokens == Case(case.family, length=case.length).plain(N).tokens:
        not_shown("the processor does not change the text")
    check(case, adapter, contract)


@pytest.mark.asked("plain decoding")
@pytest.mark.contract("C8")
def test_plain(family: Family, adapter: Adapters, request: pytest.FixtureRequest) -> None:
    """A token takes one forward pass. The steps are noted, for a comparison with another tree bit for bit."""
    case = Case(family, length=family.prompts[-1], n=N)
    run = decode_plain(case)
    shapes = run.blocks
    note(request, "forwards", len(shapes))
    steps = (f"{token}:{digest(row)}" for token, row in zip(run.tokens, run.rows, strict=True))
    note(request, "steps", " ".join(steps))
    if sum(shapes) > family.prompts[-1] + N or shapes.count(1) < N - 1:
        broken(f"{N} tokens take passes of {shapes} tokens")


def digest(row: mx.array) -> str:
    return hashlib.sha256(bytes(memoryview(row.astype(mx.float32)))).hexdigest()[:8]


@pytest.mark.asked("C4 parity")
def test_parity(case: Case, adapter: Adapters) -> None:
    """The tokens and log probabilities of plain decoding."""
    ask(case, adapter, "C4")


@pytest.mark.asked("C4 seeds", ours=True)
def test_seeds(case: Case, adapter: Adapters) -> None:
    """A seed gives the tokens that it gives to plain decoding, with any sampler."""
    ask(case, adapter, "C4")


@pytest.mark.asked("C3 exits", ours=True)
def test_exits(case: Case, adapter: Adapters) -> None:
    """However it ends, the caches hold the prompt and what was yielded."""
    ask(case, adapter, "C3")


@pytest.mark.asked("C5 processors")
def test_processors(case: Case, adapter: Adapters) -> None:
    """They are shown the prompt and each token before, and what they make of it is what is drawn."""
    ask(case, adapter, "C5")


@pytest.mark.contract("C8")
def test_counts(case: Case, adapter: Adapters) -> None:
    """One forward pass for each cycle, at each length of a prompt."""
    ask(case, adapter, "C8")
