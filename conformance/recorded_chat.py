"""`mlx_lm.chat`, with a record of each turn: what was fed, what was generated, and what is known afterwards.

RECORD=file [FAULT=name] python -m conformance.recorded_chat ARGUMENTS
"""

from __future__ import annotations

import copy
import importlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

chat: Any = importlib.import_module("mlx_lm.chat")
Turn = dict[str, Any]
# What was fed and generated since the cache was made.
conversation: list[int] = []


def forgets(prompt: list[int], drafting: Turn) -> tuple[list[int], Turn]:
    """Each turn has a drafter that saw none before."""
    return prompt, drafting | {"draft_strategy": copy.deepcopy(drafting["unused"])}


def feeds_twice(prompt: list[int], drafting: Turn) -> tuple[list[int], Turn]:
    """Each turn feeds the turns before once more."""
    return conversation + prompt, drafting


FAULTS: dict[str, Callable[[list[int], Turn], tuple[list[int], Turn]]] = {
    fault.__name__: fault for fault in (forgets, feeds_twice)
}


class Recorder:
    """Stands for ``stream_generate`` in the chat."""

    def __init__(self, generate: Callable[..., Iterator[Any]], path: Path, fault: str = "") -> None:
        self._generate, self._path, self._fault = generate, path, FAULTS.get(fault)
        self._cache: Any = None
        self._unused: Any = None
        self._history: list[int] = []

    def __call__(
        self, model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, **kwargs: Any
    ) -> Iterator[Any]:
        strategy = kwargs.get("draft_strategy")
        if self._cache is not prompt_cache:
            self._cache, self._history = prompt_cache, []
            self._unused = copy.deepcopy(strategy) if self._fault else None
            conversation.clear()
        new = len(prompt)
        if self._fault is not None:
            prompt, kwargs = self._fault(prompt, kwargs | {"unused": self._unused})
            kwargs.pop("unused")
            strategy = kwargs.get("draft_strategy")
        if strategy is not None and "observe" not in vars(strategy):
            self._listen_to(strategy)
        answer = []
        for response in self._generate(model, tokenizer, prompt, prompt_cache=prompt_cache, **kwargs):
            answer.append(response.token)
            yield response
        conversation.extend([*prompt, *answer])
        turn = {
            "new": new,
            "fed": len(prompt),
            "conversation": list(conversation),
            "history": list(self._history),
            "cached": prompt_cache[0].offset,
            "counts": None if response.draft is None else vars(response.draft),
        }
        with self._path.open("a") as file:
            print(json.dumps(turn), file=file)

    def _listen_to(self, strategy: Any) -> None:
        """Keep what a strategy hears from now on as its history."""
        observe = strategy.observe
        self._history = history = list[int]()

        def listen(tokens: list[int]) -> None:
            history.extend(tokens)
            observe(tokens)

        strategy.observe = listen


if __name__ == "__main__":
    chat.stream_generate = Recorder(chat.stream_generate, Path(os.environ["RECORD"]), os.environ.get("FAULT", ""))
    chat.main()
