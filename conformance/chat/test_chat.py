"""`mlx_lm.chat`: four edits of one text, with and without drafts, and with the published commands in a terminal.

The text is the same, turns 2 to 4 draft from the earlier answers, and no token is fed twice.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pexpect
import pytest

from conformance import FIXTURE
from conformance.chat.chat_recorded import CONTROLS, Chat, Turn
from conformance.subjects.tiny import save

# A terminal takes one line at a time.
CODE = "total = 0; for key in rows: total += key; print(total)"
NAMES = ("total", "count", "total", "count", "total")
QUERIES = [f"Change `{old}` to `{new}`." for old, new in pairwise(NAMES)]
QUERIES[0] += f" ```python {CODE} ```"
ANSWERS = [f"```python {CODE.replace('total', name)} ```" for name in NAMES[1:]]
SIZES = ("--num-draft-tokens", "6", "--disable-adaptive-gate")
PROMPT = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
# With the gate, the number of drafted tokens depends on the times of this machine.
DRAFTING = {
    "suffix": ("--draft-type", "suffix", *SIZES),
    "ngram-simple": ("--draft-type", "ngram-simple", *SIZES),
    "ngram-mod": ("--draft-type", "ngram-mod", *SIZES),
    "ngram-mod, short": ("--draft-type", "ngram-mod", "--ngram-size", "4", *SIZES),
    "a draft length": ("--prompt-lookup-num-tokens", "6", "--disable-adaptive-gate"),
    "gated": ("--draft-type", "auto"),
    "a draft model": ("--draft-model", str(FIXTURE)),
}


@pytest.fixture(scope="module")
def plain_chat() -> Chat:
    return Chat([*QUERIES, "r", *QUERIES])


def texts(session: Chat) -> list[tuple[str, int]]:
    return [(turn.text, turn.tokens) for turn in session.turns]


def complaints(session: Chat, gated: bool = False) -> Iterator[str]:
    """The faults in the record of a chat. Its second half comes after a reset."""
    half = len(QUERIES)
    for number, turn in enumerate(session.turns):
        before = [] if number % half == 0 else session.turns[number - 1].conversation
        known = len(turn.conversation)
        if QUERIES[number % half] not in turn.fed or turn.fed.count("Change") != 1:
            yield f"turn {number + 1} fed another question than its own: {turn.fed!r}"
        if turn.cached != known or turn.conversation[: len(before)] != before:
            yield f"turn {number + 1}: the cache holds {turn.cached} tokens of a conversation of {known}"
        if turn.draft is not None and turn.history != turn.conversation:
            yield f"turn {number + 1}: the drafter knows {len(turn.history)} tokens of a conversation of {known}"
    drafting = [turn.drafting for turn in session.turns]
    # With the gate, the costs of blocks are learned on the way.
    if not gated and drafting[:half] != drafting[half:]:
        yield "other drafts after a reset"
    if texts(session)[:half] != texts(session)[half:]:
        yield "another text after a reset"


def no_better(turns: list[Turn]) -> list[int]:
    """The turns with drafts that are not better than in the first turn."""
    _, accepted, rate = turns[0].counts()
    return [n for n, turn in enumerate(turns[1:], 2) if turn.counts()[1] <= accepted or turn.counts()[2] <= rate]


def test_without_drafts(plain_chat: Chat) -> None:
    assert [text for text, _ in texts(plain_chat)] == ANSWERS * 2
    assert not list(complaints(plain_chat))
    assert "drafted" not in plain_chat.shown


@pytest.mark.parametrize("name", DRAFTING)
def test_with_drafts(name: str, plain_chat: Chat) -> None:
    session = Chat([*QUERIES, "r", *QUERIES], *DRAFTING[name])
    assert texts(session) == texts(plain_chat)
    assert not list(complaints(session, gated=name == "gated"))
    for turn in session.turns:
        drafted, accepted, rate = turn.counts()
        assert (drafted, accepted) == (turn.draft.drafted, turn.draft.accepted)
        assert f"{max(turn.tokens / turn.draft.forwards, 1):.2f}" == f"{rate:.2f}"
    # A draft model drafts as well from the first turn on.
    if name not in ("gated", "a draft model"):
        assert not no_better(session.turns[:4])


@pytest.mark.planted
@pytest.mark.parametrize(
    ("fault", "complaint", "worse"),
    [("forgets", "the drafter knows", [2]), ("feeds twice", "fed another question", [])],
)
def test_a_planted_fault_is_found(fault: str, complaint: str, worse: list[int]) -> None:
    session = Chat(QUERIES[:2], *DRAFTING["suffix"], fault=fault)
    assert complaint in "\n".join(complaints(session))
    assert no_better(session.turns) == worse


def check_interrupted(*args: str, queries: int = 3, fault: str = "") -> None:
    """Ctrl-C ends each answer. The cache and the drafter hold the shown tokens, and the chat goes on."""
    session = Chat(QUERIES[:queries], *args, fault=fault, interrupt=6)
    assert len(session.turns) == queries
    assert not [complaint for complaint in complaints(session) if "after a reset" not in complaint]
    assert {turn.tokens for turn in session.turns} == {7}


@pytest.mark.parametrize("args", [(), DRAFTING["suffix"], DRAFTING["a draft model"]], ids=["plain", "suffix", "model"])
def test_ctrl_c_ends_an_answer(args: tuple[str, ...]) -> None:
    check_interrupted(*args)


@pytest.mark.planted
def test_an_answer_that_goes_on_is_found() -> None:
    with pytest.raises(AssertionError):
        check_interrupted(*DRAFTING["suffix"], queries=1, fault="goes on")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": str(FIXTURE), **{name: str(save(name, folder)) for name in ("gemma3_text", "qwen3_next")}}


def check_the_question_again(model: str, *args: str, fault: str = "", queries: Sequence[str] = QUERIES[:3]) -> None:
    """The answer to a question whose first two answers were broken off is that of a chat without these."""
    options = ("--model", model, "--max-tokens", "40")
    first, second, third = queries
    whole = Chat(queries, *options)
    asked = [first, second, second, second, third]
    again = Chat(asked, *options, *args, fault=fault, interrupt=6, interrupted=[1, 2])
    broken_off = [again.turns.pop(1), again.turns.pop(1)]
    assert {turn.tokens for turn in broken_off} == {7}
    assert texts(again) == texts(whole)
    assert [turn.cached for turn in again.turns] == [turn.cached for turn in whole.turns]


AGAIN = [("fixture", name) for name in ("", "a draft length", "suffix", "a draft model")]
AGAIN += [(model, name) for model in ("gemma3_text", "qwen3_next") for name in ("", "a draft length")]


@pytest.mark.parametrize(("model", "name"), AGAIN)
def test_a_question_again(models: dict[str, str], model: str, name: str) -> None:
    queries = QUERIES[:3] if model == "fixture" else ["abcdefgh" * 3, "ijklmnop" * 3, "qrstuvwx" * 3]
    check_the_question_again(models[model], *DRAFTING.get(name, ()), queries=queries)


def test_a_question_again_after_a_reset() -> None:
    """There is nothing to go back to in a new conversation."""
    session = Chat([QUERIES[0], QUERIES[1], "r", QUERIES[1]], interrupt=6, interrupted=[1])
    assert texts(session)[-1:] == texts(Chat([QUERIES[1]]))


@pytest.mark.planted
def test_a_broken_off_answer_that_stays_is_found() -> None:
    with pytest.raises(AssertionError):
        check_the_question_again(str(FIXTURE), fault="keeps")


PUBLISHED = """python -m mlx_lm chat \\
  --model Qwen/Qwen3-8B-MLX-4bit \\
  --max-tokens 500 \\
  --temp 0 \\
  --chat-template-config '{{"enable_thinking": false}}' \\
  --draft-type {} \\
  --num-draft-tokens {} \\
  --ngram-size {} \\
  --disable-adaptive-gate
"""


@pytest.mark.parametrize(("draft_type", "length", "size"), [("ngram-simple", 4, 3), ("ngram-mod", 6, 16)])
def test_the_published_commands(draft_type: str, length: int, size: int) -> None:
    """The published commands with the model of this repository, typed into a terminal, and four turns."""
    command = PUBLISHED.format(draft_type, length, size).replace("Qwen/Qwen3-8B-MLX-4bit", shlex.quote(str(FIXTURE)))
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm"}
    # Far longer than it takes, so that a program that hangs fails.
    terminal = pexpect.spawn("sh", ["-c", command], env=env, encoding="utf-8", dimensions=(40, 200), timeout=120)
    terminal.expect(PROMPT)
    for query, answer in zip(QUERIES, ANSWERS, strict=True):
        terminal.sendline(query)
        terminal.expect(PROMPT)
        shown = CONTROLS.sub("", terminal.before)
        assert answer in shown
        assert "tokens-per-forward" in shown
    terminal.sendline("q")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
