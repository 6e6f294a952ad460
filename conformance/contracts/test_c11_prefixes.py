"""Every architecture that cannot be trimmed, edited anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from zlib import crc32

import mlx.core as mx
import pytest

from conformance.drafters import Head
from conformance.oracle.compare import held
from conformance.oracle.findings import WHOLE
from conformance.oracle.profiles import FULL
from conformance.oracle.sessions import ANSWER, PROMPT, Session, partly
from conformance.subjects.architectures import SHORT, batched, bounded, build, classes, make_cache
from conformance.subjects.decoded import FAMILIES, WINDOW, Family, model_of

T = TypeVar("T")
pytestmark = pytest.mark.usefixtures("uncompiled")
# How many tokens the next prompt shares: none, at the edges of the window, in the middle, at the ends of messages and
# of what is fed at once, one token from the end, and in the answer.
EDITS = (0, 9, WINDOW - 1, WINDOW, WINDOW + 1, 30, 35, 48, 58, 59, 70, 77)
AFTER_DRAFTS = (WINDOW + 1, 48, 70, 77)
# SSD and MLA: what is fed at once sums in another order than parts of it.
OFF_IN_PARTS = dict.fromkeys(
    "bailing_hybrid falcon_h1 granitemoehybrid longcat_flash_ngram mamba2 nemotron_h plamo2".split(), 1e-4
)
UNTRIMMABLE = bounded()
# One model for each kind of state is asked everything. The others are asked alone or in a batch, by turns that do not
# depend on which models there are, and in a batch those with ssm_attn.
OF_EACH_STATE = {frozenset(classes()[name]): name for name in (*UNTRIMMABLE, "gemma3_text", "mamba", "qwen3_next")}
ALL_EDITS = {*(UNTRIMMABLE if FULL else OF_EACH_STATE.values())}
BATCHED = {*ALL_EDITS, "falcon_h1", "granitemoehybrid", "mamba2", "plamo2"}
ALONE = [name for name in UNTRIMMABLE if name in ALL_EDITS or crc32(name.encode()) % 2]


def sample(name: str, cases: Sequence[T]) -> Sequence[T]:
    """All cases, or one of them by turns."""
    return cases if name in ALL_EDITS else [cases[crc32(name.encode()) // 2 % len(cases)]]


@pytest.mark.parametrize("name", ALONE)
def test_alone(name: str) -> None:
    """Without drafts, and with drafts that are half right."""
    model = build(name)
    for drafts, edits in ((None, EDITS), (partly(0.5), AFTER_DRAFTS)):
        session = Session(name, model, OFF_IN_PARTS.get(name, 0.0))
        session.ask_edits(session.ask(PROMPT, drafts).text, sample(name, edits if name in ALL_EDITS else edits[1:]))


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES if one.name in ("qwen3_next", "gemma3_text")], ids=lambda one: one.name
)
def test_with_a_head(family: Family) -> None:
    """The cache of both at a checkpoint is as if they had seen nothing else."""
    from mlx_lm.draft import HeadDraftStrategy, HeadedModel  # A stage that comes later.

    text = Session(family.name, model_of(family)).cold(PROMPT).text
    headed = HeadedModel(model_of(family), Head(text))
    session = Session(family.name, headed)

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_strategy": HeadDraftStrategy(), "num_draft_tokens": 3, **WHOLE}

    for one in session.ask_edits(session.ask(PROMPT, drafts).text, (11, 17, 48, 70), drafts):
        fresh = make_cache(headed)
        headed(mx.array([one.text]), cache=fresh)
        (tokens, shown), (others, right) = held(headed, one.cache), held(headed, fresh)
        assert tokens == others == one.text[1:], f"back to {one.found} tokens: the head holds {tokens}, not {one.text}"
        assert shown == pytest.approx(right, abs=2e-3)


# What is asked for next: the next turn, an edited turn, the same turn edited again, and another last token.
CHANGES: list[Callable[[list[int]], list[int]]] = [
    lambda text: [*text, 5, 6, 7, 8, 9],
    lambda text: [*text[:28], 1, 2, 3, *text[33:]],
    lambda text: [*text[:28], 1, 4],
    lambda text: [*text[: -ANSWER - 1], 4],
]


# Those of SHORT compute wrong blocks in the release too.
@pytest.mark.parametrize("name", sorted(({*UNTRIMMABLE} - {*ALONE} | BATCHED) & {*batched()} - SHORT))
def test_together(name: str) -> None:
    """Three conversations at a time, with no drafts, half right and right ones, go on from what any did before."""
    session, drafts = Session(name, build(name)), (None, partly(0.5), partly(1.0))
    texts = [one.text for one in session.ask_together([PROMPT, PROMPT[4:45], PROMPT[9:40]], drafts)]
    for change in CHANGES if name in BATCHED else sample(name, CHANGES):
        texts = [one.text for one in session.ask_together([*map(change, texts)], drafts)]
