"""`mlx_lm.chat`: with drafts and without, lines that are typed get the answers of a plain chat.

Later turns draft from the earlier answers, no token is fed twice, and Ctrl-C breaks off an answer that can be asked for
again. The published commands are ways to draft like others.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.chat.session import AFTER, CTRL_C, CTRL_D, Turn, talk
from conformance.doors.printed import Drafting
from conformance.oracle.findings import broken
from conformance.subjects.tiny import save

# One line is one question.
CODE = "total = 0; for key in rows: total += key; print(total)"
NAMES = ("total", "count", "total", "count", "total")
EDITS = [f"Change `{old}` to `{new}`." for old, new in pairwise(NAMES)]
EDITS[0] += f" ```python {CODE} ```"
ANSWERS = [f"```python {CODE.replace('total', name)} ```" for name in NAMES[1:]]
# For models with random weights.
LETTERS = ["abcdefgh" * 3, "ijklmnop" * 3, "qrstuvwx" * 3]

# What is typed. An answer that is broken off twice and asked for again forgets the broken-off ones. There is nothing to
# go back to in a new conversation.
LINES = {
    "two conversations": [*EDITS, "r", *EDITS, "q"],
    "broken off": [*(edit + CTRL_C for edit in EDITS[:3]), CTRL_D],
    "again": [EDITS[0], EDITS[1] + CTRL_C, EDITS[1] + CTRL_C, *EDITS[1:3], CTRL_D],
    "letters again": [LETTERS[0], LETTERS[1] + CTRL_C, LETTERS[1] + CTRL_C, *LETTERS[1:], CTRL_D],
    "again after a reset": [EDITS[0], EDITS[1] + CTRL_C, "r", EDITS[1], "q"],
}
# With the gate, the number of drafted tokens depends on the times of this machine.
SIZES = ("--num-draft-tokens", "6", "--disable-adaptive-gate")
PUBLISHED = ("--max-tokens", "500", "--temp", "0", "--chat-template-config", '{"enable_thinking": false}', *SIZES)
DRAFTS: dict[str, tuple[str, ...]] = {
    "": (),
    "suffix": ("--draft-type", "suffix", *SIZES),
    "ngram-simple": ("--draft-type", "ngram-simple", *SIZES),
    "ngram-mod": ("--draft-type", "ngram-mod", *SIZES),
    "ngram-mod, short": ("--draft-type", "ngram-mod", "--ngram-size", "4", *SIZES),
    "a draft length": ("--prompt-lookup-num-tokens", "6", "--disable-adaptive-gate"),
    "published": (*PUBLISHED, "--draft-type", "ngram-mod", "--ngram-size", "16"),
    "published, simple": (*PUBLISHED, "--draft-type", "ngram-simple", "--num-draft-tokens", "4", "--ngram-size", "3"),
    "gated": ("--draft-type", "auto"),
    "a draft model": ("--draft-model", str(FIXTURE)),
}
SESSIONS = [
    *(("fixture", "two conversations", drafts) for drafts in DRAFTS),
    *(("fixture", "broken off", drafts) for drafts in ("", "suffix", "a draft model")),
    *(("fixture", "again", drafts) for drafts in ("", "a draft length", "suffix", "a draft model")),
    *((model, "letters again", drafts) for model in ("gemma3_text", "qwen3_next") for drafts in ("", "a draft length")),
    ("fixture", "again after a reset", ""),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": FIXTURE, **{name: save(name, folder) for name in ("gemma3_text", "qwen3_next")}}


@cache
def plain(model: Path, *lines: str) -> list[Turn]:
    return talk(model, lines, "--max-tokens", "40")


@pytest.mark.parametrize(("model", "typed", "drafts"), SESSIONS)
def test_a_session(models: dict[str, Path], model: str, typed: str, drafts: str) -> None:
    turns = talk(models[model], LINES[typed], "--max-tokens", "40", *DRAFTS[drafts])
    right = plain(models[model], *(line for line in LINES[typed] if not line.endswith(CTRL_C)))
    whole = [turn for turn in turns if not turn.line.endswith(CTRL_C)]
    for turn, other in zip(whole, right, strict=True):
        if (turn.text, turn.tokens, turn.cached) != (other.text, other.tokens, other.cached):
            broken(f"{turn.line!r} is answered by {turn.text!r}, {turn.cached} cached; a plain chat: {other}")
    for number, turn in enumerate(turns, 1):
        if "again" not in typed:
            check_what_is_known(number, turn)
        if turn not in whole and turn.tokens != AFTER + 1:
            broken(f"the answer to {turn.line!r} has {turn.tokens} tokens, where Ctrl-C is pressed after {AFTER}")
        if drafts:
            check_counts(turn)
        elif turn.drafting:
            broken(f"a plain chat says that it drafted: {turn.drafting}")
    if typed == "two conversations":
        assert [turn.text for turn in turns] == ANSWERS * 2
        check_what_is_learned([turn.drafting for turn in turns if turn.drafting], drafts)


def check_what_is_known(number: int, turn: Turn) -> None:
    """Each turn feeds its own question, and the cache holds the conversation."""
    if turn.line.removesuffix(CTRL_C) not in turn.prompt or turn.prompt.count("Change") != 1:
        broken(f"turn {number} fed another question than its own: {turn.prompt!r}")
    if turn.cached != turn.known:
        broken(f"turn {number}: the cache holds {turn.cached} tokens of a conversation of {turn.known}")


def check_counts(turn: Turn) -> None:
    """What is said of drafts is so."""
    counts, forwards = turn.drafting, turn.stats.forwards
    if counts is None or counts[1:3] != (turn.stats.drafted, turn.stats.accepted):
        broken(f"{turn.line!r}: {counts} is said of {turn.stats}")
    saved = 1 + (turn.stats.accepted - turn.stats.near_ties) / forwards
    if abs(counts.rate - (rate if (rate := turn.tokens / forwards) >= 1.005 else max(saved, 1))) > 0.005:
        broken(f"{turn.line!r}: {counts.rate} tokens for each pass is said of {turn.tokens} in {forwards} passes")


def check_what_is_learned(counts: list[Drafting], drafts: str) -> None:
    """Later turns draft from the answers before, and a new conversation drafts like the first one."""
    if drafts in ("", "gated"):
        return
    first, later = counts[: len(EDITS)], counts[len(EDITS) :]
    if first != later:
        broken(f"other drafts after a reset: {first}, then {later}")
    worse = [c for c in first[1:] if c.accepted <= first[0].accepted or c.rate <= first[0].rate]
    # A draft model drafts as well from the first turn on.
    if worse and drafts != "a draft model":
        broken(f"later turns do not draft from the answers before: {first[0]}, then {worse}")
