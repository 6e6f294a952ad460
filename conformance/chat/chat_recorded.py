"""Run `mlx_lm.chat`, and record for each turn the fed tokens, the generated tokens and the state afterwards.

RECORD=file [FAULT=name] [INTERRUPT=tokens] python -m conformance.chat.chat_recorded ARGUMENTS

The arguments are those of `mlx_lm.chat`, --help too.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

chat: Any = importlib.import_module("mlx_lm.chat")
Turn = dict[str, Any]
# The tokens that were fed and generated since the cache was made.
conversation: list[int] = []


# Press Ctrl-C after this many tokens of each answer. 0 means never.
INTERRUPT = int(os.environ.get("INTERRUPT", "0"))


def forgets(prompt: list[int], drafting: Turn) -> tuple[list[int], Turn]:
    """A fault: each turn has a new drafter that saw no earlier turn."""
    return prompt, drafting | {"draft": replace(drafting["draft"], draft_strategy=copy.deepcopy(drafting["unused"]))}


def feeds_twice(prompt: list[int], drafting: Turn) -> tuple[list[int], Turn]:
    """A fault: each turn feeds the earlier turns again."""
    return conversation + prompt, drafting


def does_not_stop(prompt: list[int], drafting: Turn) -> tuple[list[int], Turn]:
    """A fault: Ctrl-C does nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return prompt, drafting


FAULTS: dict[str, Callable[[list[int], Turn], tuple[list[int], Turn]]] = {
    fault.__name__: fault for fault in (forgets, feeds_twice, does_not_stop)
}


class Recorder:
    """Takes the place of ``stream_generate`` in the chat."""

    def __init__(self, generate: Callable[..., Generator[Any, None, None]], path: Path, fault: str = "") -> None:
        self._generate, self._path, self._fault = generate, path, FAULTS.get(fault)
        self._cache: Any = None
        self._unused: Any = None
        self._history: list[int] = []

    def __call__(
        self, model: Any, tokenizer: Any, prompt: list[int], *, prompt_cache: Any, **kwargs: Any
    ) -> Iterator[Any]:
        strategy = kwargs["draft"].draft_strategy
        if self._cache is not prompt_cache:
            self._cache, self._history = prompt_cache, []
            self._unused = copy.deepcopy(strategy) if self._fault else None
            conversation.clear()
        new = len(prompt)
        if self._fault is not None:
            prompt, kwargs = self._fault(prompt, kwargs | {"unused": self._unused})
            kwargs.pop("unused")
            strategy = kwargs["draft"].draft_strategy
        if strategy is not None and "observe" not in vars(strategy):
            self._listen_to(strategy)
        answer: list[int] = []
        counts = None
        responses = self._generate(model, tokenizer, prompt, prompt_cache=prompt_cache, **kwargs)
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
            self._note([*prompt, *answer], new, len(prompt), prompt_cache, counts)

    def _note(self, added: list[int], new: int, fed: int, prompt_cache: Any, counts: Turn | None) -> None:
        conversation.extend(added)
        turn = {
            "new": new,
            "fed": fed,
            "conversation": list(conversation),
            # A draft model knows the tokens in its cache. That cache comes last.
            "history": list(self._history) or conversation[: prompt_cache[-1].offset],
            "cached": prompt_cache[0].offset,
            "counts": counts,
        }
        with self._path.open("a") as file:
            print(json.dumps(turn), file=file)

    def _listen_to(self, strategy: Any) -> None:
        """Record the tokens that a strategy observes from now on as its history."""
        observe = strategy.observe
        self._history = history = list[int]()

        def listen(tokens: list[int]) -> None:
            history.extend(tokens)
            observe(tokens)

        strategy.observe = listen


if __name__ == "__main__":
    record, fault = os.environ.get("RECORD", os.devnull), os.environ.get("FAULT", "")
    chat.stream_generate = Recorder(chat.stream_generate, Path(record), fault)
    chat.main()
