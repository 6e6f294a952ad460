"""`mlx_lm.chat` in a real terminal: four edits of one text, with and without drafts.

The text is the same, turns 2 to 4 draft from the earlier answers, and no token is fed twice.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.chat.chat_terminal import Chat, Turn, chat

# A terminal takes one line at a time.
CODE = "total = 0; for key in rows: total += key; print(total)"
NAMES = ("total", "count", "total", "count", "total")
QUERIES = [f"Change `{old}` to `{new}`." for old, new in pairwise(NAMES)]
QUERIES[0] += f" ```python {CODE} ```"
ANSWERS = [f"```python {CODE.replace('total', name)} ```" for name in NAMES[1:]]
SIZES = ("--num-draft-tokens", "6", "--disable-adaptive-gate")
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def plain_chat(folder: Path) -> Chat:
    return chat(folder, [*QUERIES, "r", *QUERIES])


def texts(session: Chat) -> list[tuple[str, int]]:
    return [(turn.text, turn.tokens) for turn in session.turns]


def complaints(session: Chat, gated: bool = False) -> Iterator[str]:
    """The faults in the record of a chat. Its second half comes after a reset."""
    half = len(QUERIES)
    for number, record in enumerate(session.records):
        fresh = number % half == 0
        before = [] if fresh else session.records[number - 1]["conversation"]
        known, turn = len(record["conversation"]), f"turn {number + 1}"
        if QUERIES[number % half] not in record["fed"] or record["fed"].count("Change") != 1:
            yield f"{turn} fed another question than its own: {record['fed']!r}"
        if record["cached"] != known or record["conversation"][: len(before)] != before:
            yield f"{turn}: the cache holds {record['cached']} tokens of a conversation of {known}"
        if record["counts"] is not None and record["history"] != record["conversation"]:
            yield f"{turn}: the drafter knows {len(record['history'])} tokens of a conversation of {known}"
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
def test_with_drafts(name: str, plain_chat: Chat, folder: Path) -> None:
    session = chat(folder, [*QUERIES, "r", *QUERIES], *DRAFTING[name])
    assert texts(session) == texts(plain_chat)
    assert not list(complaints(session, gated=name == "gated"))
    for turn, record in zip(session.turns, session.records, strict=True):
        drafted, accepted, rate = turn.counts()
        counts = record["counts"]
        assert (drafted, accepted) == (counts["drafted"], counts["accepted"])
        assert f"{max(turn.tokens / counts['forwards'], 1):.2f}" == f"{rate:.2f}"
    # A draft model drafts as well from the first turn on.
    if name not in ("gated", "a draft model"):
        assert not no_better(session.turns[:4])


@pytest.mark.planted
@pytest.mark.parametrize("fault", ["forgets", "feeds_twice"])
def test_a_planted_fault_is_found(fault: str, folder: Path) -> None:
    session = chat(folder, QUERIES[:2], *DRAFTING["suffix"], fault=fault)
    found = "\n".join(complaints(session))
    assert {"forgets": "the drafter knows", "feeds_twice": "fed another question"}[fault] in found
    assert no_better(session.turns) == ([2] if fault == "forgets" else [])


def check_interrupted(folder: Path, *args: str, queries: int = 3, fault: str = "") -> None:
    """Ctrl-C ends each answer. The cache and the drafter hold the shown tokens, and the chat goes on."""
    session = chat(folder, QUERIES[:queries], *args, fault=fault, interrupt=6)
    assert len(session.records) == queries
    assert not [complaint for complaint in complaints(session) if "after a reset" not in complaint]
    assert {turn.tokens for turn in session.turns} == {7}
    assert "Traceback" not in session.shown


@pytest.mark.parametrize("args", [(), DRAFTING["suffix"], DRAFTING["a draft model"]], ids=["plain", "suffix", "model"])
def test_ctrl_c_ends_an_answer(args: tuple[str, ...], folder: Path) -> None:
    check_interrupted(folder, *args)


@pytest.mark.planted
def test_an_answer_that_goes_on_is_found(folder: Path) -> None:
    with pytest.raises(AssertionError):
        check_interrupted(folder, *DRAFTING["suffix"], queries=1, fault="does_not_stop")


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
    """The published commands, with the model of this repository and four turns through a pipe."""
    command = PUBLISHED.format(draft_type, length, size).replace("Qwen/Qwen3-8B-MLX-4bit", shlex.quote(str(FIXTURE)))
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    lines = "\n".join([*QUERIES, "q", ""])
    done = subprocess.run(command, shell=True, input=lines, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(answer) for answer in ANSWERS[:2]] == [2, 2]
    assert done.stdout.count("tokens-per-forward") == 4
