"""Run `mlx_lm.chat`, and record for each turn what was fed, what the drafter and the cache know, and the counts.

RECORD=file [FAULT=name] [INTERRUPT=tokens] python -m conformance.chat.chat_recorded ARGUMENTS

The arguments are those of `mlx_lm.chat`, --help too. FAULT=forgets: each turn has a new drafter. FAULT=feeds_twice:
each turn feeds the earlier ones again. FAULT=does_not_stop: Ctrl-C does nothing.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

chat: Any = importlib.import_module("mlx_lm.chat")
generate = chat.stream_generate
RECORD, FAULT = Path(os.environ.get("RECORD", os.devnull)), os.environ.get("FAULT", "")
# Press Ctrl-C after this many tokens of each answer. 0 means never.
INTERRUPT = int(os.environ.get("INTERRUPT", "0"))


class Conversation:
    """What was fed and generated since a cache was made, and what its strategy has observed."""

    def __init__(self, cache: Any, strategy: Any) -> None:
        self.cache, self.unused = cache, copy.deepcopy(strategy) if FAULT else None
        self.tokens: list[int] = []
        self.history: list[int] = []

    def listen_to(self, strategy: Any) -> None:
        if strategy is None or "observe" in vars(strategy):
            return
        observe = strategy.observe
        self.history = history = list[int]()

        def listen(tokens: list[int]) -> None:
            history.extend(tokens)
            observe(tokens)

        strategy.observe = listen


now = Conversation(None, None)


def recorded(
    model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, draft: Any, **kwargs: Any
) -> Iterator[Any]:
    """Takes the place of ``stream_generate`` in the chat."""
    global now
    if now.cache is not prompt_cache:
        now = Conversation(prompt_cache, draft.draft_strategy)
    if FAULT == "forgets":
        draft = replace(draft, draft_strategy=copy.deepcopy(now.unused))
    if FAULT == "feeds_twice":
        prompt = now.tokens + prompt
    if FAULT == "does_not_stop":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    now.listen_to(draft.draft_strategy)
    answer, counts = [], None
    responses = generate(model, tokenizer, prompt, prompt_cache=prompt_cache, draft=draft, **kwargs)
    try:
        for response in responses:
            answer.append(response.token)
            counts = None if response.draft is None else vars(response.draft)
            yield response
            if len(answer) == INTERRUPT:
                signal.raise_signal(signal.SIGINT)
    finally:
        # Ctrl-C may interrupt the answer.
        responses.close()
        now.tokens += [*prompt, *answer]
        turn = {
            "fed": tokenizer.decode(prompt),
            "conversation": now.tokens,
            # A draft model knows the tokens in its cache. That cache comes last.
            "history": now.history or now.tokens[: prompt_cache[-1].offset],
            "cached": prompt_cache[0].offset,
            "counts": counts,
        }
        with RECORD.open("a") as file:
            print(json.dumps(turn), file=file)


if __name__ == "__main__":
    chat.stream_generate = recorded
    chat.main()
