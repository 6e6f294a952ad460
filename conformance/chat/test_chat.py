"""`mlx_lm.chat`: with drafts and without, lines that are typed get the answers of a plain chat.

No question is fed twice, and Ctrl-C breaks off an answer that can be asked for again.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

# In trees without it Ctrl-C ends the chat.
import mlx_lm.draft  # noqa: F401
import pytest

from conformance import FIXTURE
from conformance.oracle.findings import broken

chat: Any = importlib.import_module("mlx_lm.chat")
# The colors of a terminal.
CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02\r]")
# A line that ends with CTRL_C has an answer that is broken off after so many tokens. CTRL_D ends the chat.
CTRL_C, AFTER, CTRL_D = " ^C", 6, "^D"
# One line is one question.
CODE = "total = 0; for key in rows: total += key; print(total)"
EDITS = [f"Change `total` to `count`. ```python {CODE} ```", "Change `count` to `total`.", "Change `total` to `count`."]
ANSWERS = [f"```python {CODE.replace('total', name)} ```" for name in ("count", "total", "count")]
# For models with random weights.
LETTERS = ["abcdefgh" * 3, "ijklmnop" * 3, "qrstuvwx" * 3]
# What is typed. An answer that is broken off twice and asked for again forgets the broken-off ones.
LINES = {
    "two conversations": [*EDITS, "r", *EDITS, "q"],
    "again": [EDITS[0], EDITS[1] + CTRL_C, EDITS[1] + CTRL_C, EDITS[1], CTRL_D],
    "first": [EDITS[0] + CTRL_C, EDITS[0], CTRL_D],
    "letters again": [LETTERS[0], LETTERS[1] + CTRL_C, LETTERS[1] + CTRL_C, *LETTERS[1:], CTRL_D],
}
DRAFTS: dict[str, list[str]] = {
    "": [],
    # With the gate, the number of drafted tokens depends on the times of this machine.
    "suffix": "--draft-type suffix --num-draft-tokens 6 --disable-adaptive-gate".split(),
    "a draft length": "--prompt-lookup-num-tokens 6 --disable-adaptive-gate".split(),
    "a draft model": ["--draft-model", str(FIXTURE)],
}
SESSIONS = [
    *(("fixture", "two conversations", drafts) for drafts in DRAFTS),
    *(("fixture", "again", drafts) for drafts in ("", "suffix", "a draft model")),
    ("fixture", "first", "a draft model"),
    *((model, "letters again", "a draft length") for model in ("gemma3_text", "qwen3_next")),
]


@dataclass
class Turn:
    line: str
    prompt: str
    # How many tokens the cache holds after it.
    cached: int = 0
    # The answer as it is shown, and whether something is said of drafts below it.
    text: str = ""
    tokens: int = 0
    drafted: bool = False


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
            turn.text, turn.tokens = shown[: found.start()].strip("\n"), int(found[1])
            turn.drafted = "Drafting: " in shown

    def input_line(_: str) -> str:
        read()
        typed.append(lines[len(typed)])
        if typed[-1] == CTRL_D:
            raise EOFError
        return typed[-1].removesuffix(CTRL_C)

    def generate(model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, **more: Any) -> Iterator[Any]:
        """Takes the place of ``stream_generate``."""

        turns.append(Turn(typed[-1], tokenizer.decode(prompt)))
        responses = stream(model, tokenizer, prompt, prompt_cache=prompt_cache, **more)
        try:
            for n, response in enumerate(responses, 1):
                yield response
                if n == AFTER and typed[-1].endswith(CTRL_C):
                    signal.raise_signal(signal.SIGINT)
        finally:
            responses.close()
            turns[-1].cached = next(c.offset for c in prompt_cache if hasattr(c, "offset"))

    with (
        patch.object(chat, "stream_generate", generate),
        patch.object(sys, "argv", ["mlx_lm.chat", "--model", model, "--max-tokens", "40", *options]),
        patch("builtins.input", input_line),
        contextlib.redirect_stdout(out),
    ):
        chat.main()
    read()
    return turns


@pytest.mark.parametrize(("model", "typed", "drafts"), SESSIONS)
def test_a_session(models: dict[str, str], model: str, typed: str, drafts: str) -> None:
    turns = talk(models[model], tuple(LINES[typed]), *DRAFTS[drafts])
    right = talk(models[model], tuple(line for line in LINES[typed] if not line.endswith(CTRL_C)))
    whole = [turn for turn in turns if not turn.line.endswith(CTRL_C)]
    for turn, other in zip(whole, right, strict=True):
        if (turn.text, turn.tokens, turn.cached) != (other.text, other.tokens, other.cached):
            broken(f"{turn.line!r} is answered by {turn.text!r}, {turn.cached} cached; a plain chat: {other}")
    for turn in turns:
        if turn not in whole and turn.tokens != AFTER + 1:
            broken(f"the answer to {turn.line!r} has {turn.tokens} tokens, where Ctrl-C is pressed after {AFTER}")
        if turn.line.removesuffix(CTRL_C) not in turn.prompt or turn.prompt.count("Change") > 1:
            broken(f"it fed another question than {turn.line!r}: {turn.prompt!r}")
        if bool(drafts) != turn.drafted:
            broken(f"drafts are {'' if turn.drafted else 'not '}told below the answer to {turn.line!r}")
    if typed == "two conversations":
        assert [turn.text for turn in turns] == ANSWERS * 2
