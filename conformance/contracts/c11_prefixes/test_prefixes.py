"""Every architecture that cannot be trimmed, edited anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.contracts.c11_prefixes.sessions import ANSWER, PROMPT, WINDOW, Session, partly
from conformance.subjects.architectures import SHORT, batched, bounded, build

pytestmark = pytest.mark.usefixtures("uncompiled")
# How many tokens the next prompt shares: none, at the edges of the window, in the middle, at the ends of messages and
# of what is fed at once, one token from the end, and in the answer.
EDITS = (0, 9, WINDOW - 1, WINDOW, WINDOW + 1, 30, 35, 48, 58, 59, 70, 77)
AFTER_DRAFTS = (WINDOW + 1, 48, 70, 77)
# SSD and MLA: what is fed at once sums in another order than parts of it.
ROUNDING = dict.fromkeys(
    "bailing_hybrid falcon_h1 granitemoehybrid longcat_flash_ngram mamba2 nemotron_h plamo2".split(), 1e-4
)
UNTRIMMABLE = bounded()


@pytest.mark.parametrize("name", UNTRIMMABLE)
def test_alone(name: str) -> None:
    """Without drafts, and with drafts that are half right."""
    model = build(name)
    for drafts, edits in ((None, EDITS), (partly(0.5), AFTER_DRAFTS)):
        session = Session(name, model, ROUNDING.get(name, 0.0))
        session.ask_edits(session.ask(PROMPT, drafts).text, edits)


# What is asked for next: the next turn, an edited turn, the same turn edited again, and another last token.
CHANGES: list[Callable[[list[int]], list[int]]] = [
    lambda text: [*text, 5, 6, 7, 8, 9],
    lambda text: [*text[:28], 1, 2, 3, *text[33:]],
    lambda text: [*text[:28], 1, 4],
    lambda text: [*text[: -ANSWER - 1], 4],
]
# Two of them for each model in turn: test_alone asks every edit of every model.
TALKS = ((0, 1), (1, 2), (0, 3))


# The others compute wrong blocks in the release too.
TOGETHER = [name for name in UNTRIMMABLE if name in batched() and name not in SHORT]


@pytest.mark.parametrize("name", TOGETHER)
def test_together(name: str) -> None:
    """Three conversations at a time, with no drafts, half right and right ones, go on from what any did before."""
    session, drafts = Session(name, build(name)), (None, partly(0.5), partly(1.0))
    texts = [one.text for one in session.ask_together([PROMPT, PROMPT[4:45], PROMPT[9:40]], drafts)]
    for i in TALKS[TOGETHER.index(name) % len(TALKS)]:
        texts = [one.text for one in session.ask_together([*map(CHANGES[i], texts)], drafts)]
