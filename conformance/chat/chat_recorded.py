"""Run `mlx_lm.chat`, and record for each turn what was fed and shown, and what the drafter and the cache know."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from conformance import FIXTURE

chat: Any = importlib.import_module("mlx_lm.chat")
generate = chat.stream_generate
CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02\r]")
_TURN = re.compile(
    r"\n*(?P<text>.*)\n  (?P<tokens>\d+) tokens · [\d.]+ tok/s · prompt [\d.]+ tok/s · peak [\d.]+ GB\n"
    r"(  Drafting: (?P<drafting>[^\n]*)\n)?",
    re.DOTALL,
)
_DRAFTING = re.compile(r"(\w+), (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward(, .+)?")


@dataclass
class Turn:
    """A turn: what was fed, what is known after it, and the answer with the counts below it as they are shown."""

    fed: str
    # What was fed and generated since the cache was made, and what the drafter has observed of it.
    conversation: list[int]
    history: list[int]
    cached: int
    draft: Any
    text: str = ""
    tokens: int = 0
    drafting: str | None = None

    def counts(self) -> tuple[int, int, float]:
        """(drafted tokens, accepted tokens, tokens for each forward pass)."""
        found = _DRAFTING.fullmatch(self.drafting or "")
        assert found, self.drafting
        return int(found[2]), int(found[3]), float(found[4])


class Chat:
    """A session in which these queries are typed, then ``q``.

    With ``interrupt``, Ctrl-C is pressed after so many tokens of each answer, or only of these turns, and Ctrl-D at the
    end. A planted fault ``forgets``: each turn has a new drafter; ``feeds twice``: each turn feeds the earlier ones
    again; ``goes on``: Ctrl-C does nothing; or ``keeps``: what was broken off stays in the cache.
    """

    def __init__(
        self,
        queries: Sequence[str],
        *args: str,
        fault: str = "",
        interrupt: int = 0,
        interrupted: Sequence[int] | None = None,
    ) -> None:
        self.turns: list[Turn] = []
        self.shown = ""
        self._queries, self._fault, self._interrupt = iter(queries), fault, interrupt
        self._interrupted = interrupted
        self._cache: Any = None
        self._out = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(sys, "argv", ["mlx_lm.chat", "--model", str(FIXTURE), *args]))
            stack.enter_context(patch.object(chat, "stream_generate", self._generate))
            stack.enter_context(patch("builtins.input", self._input))
            if fault == "keeps":
                stack.enter_context(patch.object(chat, "restore_prompt_cache"))
            stack.enter_context(contextlib.redirect_stdout(self._out))
            chat.main()
        self._read()

    def _input(self, _: str) -> str:
        self._read()
        query = next(self._queries, "q")
        if query == "q" and self._interrupt:
            raise EOFError
        return query

    def _read(self) -> None:
        """Read what was shown since the last query."""
        shown = CONTROLS.sub("", self._out.getvalue())
        self._out.seek(0)
        self._out.truncate()
        if self.turns and not self.turns[-1].tokens:
            found = _TURN.match(shown)
            assert found, shown
            turn = self.turns[-1]
            turn.text, turn.tokens, turn.drafting = found["text"], int(found["tokens"]), found["drafting"]
        self.shown += shown

    def _generate(
        self, model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, draft: Any, **kwargs: Any
    ) -> Iterator[Any]:
        """Takes the place of ``stream_generate`` in the chat."""
        if self._cache is not prompt_cache:
            self._cache, self._tokens = prompt_cache, list[int]()
            self._unused = copy.deepcopy(draft.draft_strategy) if self._fault else None
            self._history = self._listen_to(draft.draft_strategy)
        if self._fault == "forgets":
            draft = replace(draft, draft_strategy=copy.deepcopy(self._unused))
            self._history = self._listen_to(draft.draft_strategy)
        if self._fault == "feeds twice":
            prompt = self._tokens + prompt
        if self._fault == "goes on":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer, counts = [], None
        responses = generate(model, tokenizer, prompt, prompt_cache=prompt_cache, draft=draft, **kwargs)
        try:
            for response in responses:
                answer.append(response.token)
                counts = response.draft
                yield response
                if len(answer) == self._interrupt and self._is_interrupted():
                    signal.raise_signal(signal.SIGINT)
        finally:
            # Ctrl-C may interrupt the answer.
            responses.close()
            self._tokens = [*self._tokens, *prompt, *answer]
            # A draft model knows the tokens in its cache. That cache comes last.
            history = list(self._history) or self._tokens[: prompt_cache[-1].offset]
            cached = next(c.offset for c in prompt_cache if hasattr(c, "offset"))
            self.turns.append(Turn(tokenizer.decode(prompt), self._tokens, history, cached, copy.copy(counts)))

    def _is_interrupted(self) -> bool:
        return self._interrupted is None or len(self.turns) in self._interrupted

    def _listen_to(self, strategy: Any) -> list[int]:
        """The tokens that a strategy is told of from now on."""
        history: list[int] = []
        # A strategy may observe a prompt within begin: it is heard once.
        inner: list[None] = []

        def listening(tell: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
            def listen(tokens: list[int]) -> None:
                if not inner:
                    history.extend(tokens)
                inner.append(None)
                try:
                    tell(tokens)
                finally:
                    inner.pop()

            return listen

        if strategy is not None:
            strategy.begin, strategy.observe = listening(strategy.begin), listening(strategy.observe)
        return history
