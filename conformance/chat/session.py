"""Type lines into `mlx_lm.chat`, and record for each turn what was fed, shown and cached."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from conformance.doors.printed import CONTROLS, Drafting, drafting

chat: Any = importlib.import_module("mlx_lm.chat")
# A line that ends with CTRL_C has an answer that is broken off after so many tokens. CTRL_D ends the chat.
CTRL_C, AFTER, CTRL_D = " ^C", 6, "^D"
_TURN = re.compile(
    r"\n*(?P<text>.*)\n  (?P<tokens>\d+) tokens · [\d.]+ tok/s · prompt [\d.]+ tok/s · peak [\d.]+ GB\n", re.DOTALL
)


@dataclass
class Turn:
    line: str
    # What was fed.
    prompt: str
    # How many tokens were fed and generated since the cache was made, and how many it holds.
    known: int
    cached: int
    stats: Any
    # The answer as it is shown, and what is said below it.
    text: str = ""
    tokens: int = 0
    drafting: Drafting | None = None


def talk(model: str | Path, lines: Sequence[str], *options: str) -> list[Turn]:
    """The turns of a chat in which these lines are typed."""
    turns, typed, out, stream = list[Turn](), list[str](), io.StringIO(), chat.stream_generate
    # How many tokens are known of each list of caches. It is kept, so that its id is not used again.
    known: dict[int, tuple[Any, int]] = {}

    def read() -> None:
        """Read what was shown since the last line."""
        shown = CONTROLS.sub("", out.getvalue())
        out.seek(0)
        out.truncate()
        if turns and not turns[-1].tokens:
            found, turn = _TURN.match(shown), turns[-1]
            assert found, f"this is no answer with its counts: {shown}"
            turn.text, turn.tokens, turn.drafting = found["text"], int(found["tokens"]), drafting(shown)

    def input_line(_: str) -> str:
        read()
        typed.append(lines[len(typed)])
        if typed[-1] == CTRL_D:
            raise EOFError
        return typed[-1].removesuffix(CTRL_C)

    def generate(model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, **more: Any) -> Iterator[Any]:
        """Takes the place of ``stream_generate``."""
        n, stats, responses = 0, None, stream(model, tokenizer, prompt, prompt_cache=prompt_cache, **more)
        try:
            for n, response in enumerate(responses, 1):
                stats = response.draft and replace(response.draft)
                yield response
                if n == AFTER and typed[-1].endswith(CTRL_C):
                    signal.raise_signal(signal.SIGINT)
        finally:
            responses.close()
            before = known.get(id(prompt_cache), (None, 0))[1]
            known[id(prompt_cache)] = prompt_cache, before + len(prompt) + n
            cached = next(c.offset for c in prompt_cache if hasattr(c, "offset"))
            turns.append(Turn(typed[-1], tokenizer.decode(prompt), before + len(prompt) + n, cached, stats))

    with (
        patch.object(chat, "stream_generate", generate),
        patch.object(sys, "argv", ["mlx_lm.chat", "--model", str(model), *options]),
        patch("builtins.input", input_line),
        contextlib.redirect_stdout(out),
    ):
        chat.main()
    read()
    return turns
