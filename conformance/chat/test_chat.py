"""`mlx_lm.chat`: with drafts and without, lines that are typed get the answers of a plain chat.

Later turns draft from the earlier answers, no token is fed twice, and Ctrl-C breaks off an answer that can be asked for
again. The published commands are ways to draft like others.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from conformance import FIXTURE
from conformance.doors.printed import CONTROLS, Drafting, drafting
from conformance.oracle.findings import broken
from conformance.subjects.tiny import save

chat: Any = importlib.import_module("mlx_lm.chat")
# A line that ends with CTRL_C has an answer that is broken off after so many tokens. CTRL_D ends the chat.
CTRL_C, AFTER, CTRL_D = " ^C", 6, "^D"
# One line is one question.
CODE = "total = 0; for key in rows: total += key; print(total)"
NAMES = ("total", "count", "total", "count")
EDITS = [f"Change `{old}` to `{new}`." for old, new in pairwise(NAMES)]
EDITS[0] += f" ```python {CODE} ```"
ANSWERS = [f"```python {CODE.replace('total', name)} ```" for name in NAMES[1:]]
# For models with random weights.
LETTERS = ["abcdefgh" * 3, "ijklmnop" * 3, "qrstuvwx" * 3]

# What is typed. An answer that is broken off twice and asked for again forgets the broken-off ones. There is nothing to
# go back to in a new conversation.
LINES = {
    "two conversations": [*EDITS, "r", *EDITS, "q"],
    "broken off": [*(edit + CTRL_C for edit in EDITS), CTRL_D],
    "again": [EDITS[0], EDITS[1] + CTRL_C, EDITS[1] + CTRL_C, EDITS[1], CTRL_D],
    "letters again": [LETTERS[0], LETTERS[1] + CTRL_C, LETTERS[1] + CTRL_C, *LETTERS[1:], CTRL_D],
    "again after a reset": [EDITS[0], EDITS[1] + CTRL_C, "r", EDITS[1], "q"],
}
# With the gate, the number of drafted tokens depends on the times of this machine.
SIZES = ("--num-draft-tokens", "6", "--disable-adaptive-gate")
PUBLISHED = ("--max-tokens", "500", "--temp", "0", "--chat-template-config", '{"enable_thinking": false}', *SIZES)
DRAFTS: dict[str, tuple[str, ...]] = {
    "": (),
    "suffix": ("--draft-type", "suffix", *SIZES),
    "a draft length": ("--prompt-lookup-num-tokens", "6", "--disable-adaptive-gate"),
    "published": (*PUBLISHED, "--draft-type", "ngram-mod", "--ngram-size", "16"),
    "published, simple": (*PUBLISHED, "--draft-type", "ngram-simple", "--num-draft-tokens", "4", "--ngram-size", "3"),
    "gated": ("--draft-type", "auto"),
    "a draft model": ("--draft-model", str(FIXTURE)),
}
SESSIONS = [
    *(("fixture", "two conversations", drafts) for drafts in DRAFTS),
    ("fixture", "broken off", "suffix"),
    *(("fixture", "again", drafts) for drafts in ("", "suffix", "a draft model")),
    *((model, "letters again", drafts) for model in ("gemma3_text", "qwen3_next") for drafts in ("", "a draft length")),
    ("fixture", "again after a reset", ""),
]


@dataclass
class Turn:
    line: str
    prompt: str
    # How many tokens the cache held before, how many were fed and generated, and how many it holds now.
    before: int
    fed: int = 0
    cached: int = 0
    # The passes, and what was drafted and accepted in them.
    stats: Any = None
    # The answer as it is shown, and what is said below it.
    text: str = ""
    tokens: int = 0
    drafting: Drafting | None = None


@cache
def talk(model: str, lines: tuple[str, ...], *options: str) -> list[Turn]:
    """The turns of a chat in which these lines are typed."""
    turns, typed, out, stream = list[Turn](), list[str](), io.StringIO(), chat.stream_generate

    def read() -> None:
        """Read what was shown since the last line."""
        shown = CONTROLS.sub("", out.getvalue())
        out.seek(0)
        out.truncate()
        if turns and not turns[-1].tokens:
            found, turn = re.search(r"\n  (\d+) tokens · [\d.]+ tok/s", shown), turns[-1]
            assert found, f"this is no answer with its counts: {shown}"
            turn.text, turn.tokens, turn.drafting = shown[: found.start()].strip("\n"), int(found[1]), drafting(shown)

    def input_line(_: str) -> str:
        read()
        typed.append(lines[len(typed)])
        if typed[-1] == CTRL_D:
            raise EOFError
        return typed[-1].removesuffix(CTRL_C)

    def generate(model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, **more: Any) -> Iterator[Any]:
        """Takes the place of ``stream_generate``."""

        def held() -> int:
            return int(next(c.offset for c in prompt_cache if hasattr(c, "offset")))

        turns.append(turn := Turn(typed[-1], tokenizer.decode(prompt), held()))
        n, responses = 0, stream(model, tokenizer, prompt, prompt_cache=prompt_cache, **more)
        try:
            for n, response in enumerate(responses, 1):
                turn.stats = response.draft and replace(response.draft)
                yield response
                if n == AFTER and typed[-1].endswith(CTRL_C):
                    signal.raise_signal(signal.SIGINT)
        finally:
            responses.close()
            turn.fed, turn.cached = len(prompt) + n, held()

    with (
        patch.object(chat, "stream_generate", generate),
        patch.object(sys, "argv", ["mlx_lm.chat", "--model", model, "--max-tokens", "40", *options]),
        patch("builtins.input", input_line),
        contextlib.redirect_stdout(out),
    ):
        chat.main()
    read()
    return turns


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": str(FIXTURE), **{name: str(save(name, folder)) for name in ("gemma3_text", "qwen3_next")}}


@pytest.mark.parametrize(("model", "typed", "drafts"), SESSIONS)
def test_a_session(models: dict[str, str], model: str, typed: str, drafts: str) -> None:
    turns = talk(models[model], tuple(LINES[typed]), *DRAFTS[drafts])
    right = talk(models[model], tuple(line for line in LINES[typed] if not line.endswith(CTRL_C)))
    whole = [turn for turn in turns if not turn.line.endswith(CTRL_C)]
    for turn, other in zip(whole, right, strict=True):
        if (turn.text, turn.tokens, turn.cached) != (other.text, other.tokens, other.cached):
            broken(f"{turn.line!r} is answered by {turn.text!r}, {turn.cached} cached; a plain chat: {other}")
    for number, turn in enumerate(turns):
        if turn not in whole and turn.tokens != AFTER + 1:
            broken(f"the answer to {turn.line!r} has {turn.tokens} tokens, where Ctrl-C is pressed after {AFTER}")
        if "again" not in typed:
            check_what_is_fed(number + 1, turn, turns[number - 1].cached if number % len(EDITS) else 0)
        if drafts:
            check_counts(turn)
        elif turn.drafting:
            broken(f"a plain chat says that it drafted: {turn.drafting}")
    if typed == "two conversations":
        assert [turn.text for turn in turns] == ANSWERS * 2
        if drafts not in ("", "gated"):
            check_what_is_learned([turn.drafting for turn in turns if turn.drafting], drafts)


def check_what_is_fed(number: int, turn: Turn, before: int) -> None:
    """Each turn feeds its own question, and the cache holds the conversation."""
    if turn.line.removesuffix(CTRL_C) not in turn.prompt or turn.prompt.count("Change") != 1:
        broken(f"turn {number} fed another question than its own: {turn.prompt!r}")
    if turn.before != before or turn.cached != before + turn.fed:
        broken(f"turn {number}: {turn.fed} tokens are fed after {before}, and {turn.cached} are cached")


def check_counts(turn: Turn) -> None:
    """What is said of drafts is so: tokens for each pass, and never less than one."""
    counts, rate = turn.drafting, turn.tokens / turn.stats.forwards
    if counts is None or counts[1:3] != (turn.stats.drafted, turn.stats.accepted):
        broken(f"{turn.line!r}: {counts} is said of {turn.stats}")
    if counts.rate < 1 or (rate > 1.01 and abs(counts.rate - rate) > 0.005):
        broken(f"{turn.line!r}: {counts.rate} tokens for each pass is said of {turn.tokens} tokens, {turn.stats}")


def check_what_is_learned(counts: list[Drafting], drafts: str) -> None:
    """Later turns draft from the answers before, and a new conversation drafts like the first one."""
    first, later = counts[: len(EDITS)], counts[len(EDITS) :]
    if first != later:
        broken(f"other drafts after a reset: {first}, then {later}")
    worse = [c for c in first[1:] if c.accepted <= first[0].accepted or c.rate <= first[0].rate]
    # A draft model drafts as well from the first turn on.
    if worse and drafts != "a draft model":
        broken(f"later turns do not draft from the answers before: {first[0]}, then {worse}")
