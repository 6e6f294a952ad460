"""Type lines into `mlx_lm.chat`, and record for each turn what was fed and shown, and what is known after it."""

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
    r"\n*(?P<text>.*)\n  (?P<tokens>\d+) tokens · [\d.]+ tok/s · prompt [\d.]+ tok/s · peak [\d.]+ GB\n"
    r"(?P<drafting>  Drafting: [^\n]*\n)?",
    re.DOTALL,
)


class Heard:
    """A strategy, with the tokens that it was told of."""

    def __init__(self, strategy: Any) -> None:
        self.strategy, self.tokens = strategy, list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.tokens += prompt
        self.strategy.begin(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.strategy.observe(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)


@dataclass
class Turn:
    line: str
    # What was fed.
    prompt: str
    # What was fed and generated since the cache was made, and what the drafter knows of it.
    conversation: list[int]
    known: list[int]
    cached: int
    stats: Any
    # The answer as it is shown, and what is said below it.
    text: str = ""
    tokens: int = 0
    drafting: Drafting | None = None


class Session:
    """A chat in which these lines are typed."""

    def __init__(self, model: str | Path, lines: Sequence[str], *options: str) -> None:
        self.turns: list[Turn] = []
        self.shown = ""
        self._lines, self._line, self._cache = iter(lines), "", None
        self._conversation: list[int] = []
        self._out, self._stream, self._start = io.StringIO(), chat.stream_generate, chat.start_drafting
        patches = {"stream_generate": self._generate, "start_drafting": self._listen}
        with contextlib.ExitStack() as stack:
            for name, fake in patches.items():
                stack.enter_context(patch.object(chat, name, fake))
            stack.enter_context(patch.object(sys, "argv", ["mlx_lm.chat", "--model", str(model), *options]))
            stack.enter_context(patch("builtins.input", self._input))
            stack.enter_context(contextlib.redirect_stdout(self._out))
            chat.main()
        self._read()

    def _listen(self, *args: Any) -> Any:
        draft = self._start(*args)
        strategy = draft.draft_strategy
        return draft if strategy is None else replace(draft, draft_strategy=Heard(strategy))

    def _input(self, _: str) -> str:
        self._read()
        self._line = next(self._lines)
        if self._line == CTRL_D:
            raise EOFError
        return self._line.removesuffix(CTRL_C)

    def _read(self) -> None:
        """Read what was shown since the last line."""
        shown = CONTROLS.sub("", self._out.getvalue())
        self._out.seek(0)
        self._out.truncate()
        if self.turns and not self.turns[-1].tokens:
            found = _TURN.match(shown)
            assert found, f"this is no answer with its counts: {shown}"
            turn = self.turns[-1]
            turn.text, turn.tokens, turn.drafting = found["text"], int(found["tokens"]), drafting(shown)
        self.shown += shown

    def _generate(
        self, model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, draft: Any, **options: Any
    ) -> Iterator[Any]:
        """Takes the place of ``stream_generate`` in the chat."""
        if self._cache is not prompt_cache:
            self._cache, self._conversation = prompt_cache, []
        answer, stats = [], None
        responses = self._stream(model, tokenizer, prompt, prompt_cache=prompt_cache, draft=draft, **options)
        try:
            for response in responses:
                answer.append(response.token)
                stats = response.draft and replace(response.draft)
                yield response
                if len(answer) == AFTER and self._line.endswith(CTRL_C):
                    signal.raise_signal(signal.SIGINT)
        finally:
            responses.close()
            self._conversation = [*self._conversation, *prompt, *answer]
            # A draft model knows the tokens in its cache. That cache comes last.
            known = self._conversation[: prompt_cache[-1].offset] if draft.draft_model else None
            known = list(draft.draft_strategy.tokens) if draft.draft_strategy else known or []
            cached = next(c.offset for c in prompt_cache if hasattr(c, "offset"))
            self.turns.append(Turn(self._line, tokenizer.decode(prompt), self._conversation, known, cached, stats))
