"""The strategies to measure: each strategy of the series, with the options of the published tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftOptions, ModelDraftStrategy, NgramModStrategy, NgramModTable
from mlx_lm.draft.model import vocab_size_of
from mlx_lm.models.cache import make_prompt_cache

from conformance.bench.models import Subject, copied, fill
from conformance.bench.plan import Plan

# The strategy of "auto". The tables are about this one.
AUTO = "edit"
LOOKUPS = (AUTO, "suffix", "ngram-simple", "ngram-mod")


@dataclass(frozen=True)
class Strategy:
    """How to make a drafter for one response, and the options of the loop."""

    name: str
    make: Callable[[list[int]], Any]
    options: dict[str, Any] = field(default_factory=dict)
    state: str = "cold"

    def labels(self) -> dict[str, Any]:
        said = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return {"strategy": self.name, "options": said, "state": self.state}

    @property
    def loop(self) -> dict[str, Any]:
        return {key: value for key, value in self.options.items() if key != "ngram_size"}


class Recorded:
    """Records how many tokens of each draft were accepted. Everything else goes to the drafter."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        # (accepted, drafted)
        self.blocks: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        if n_drafted > 0:
            self.blocks.append((n_accepted, n_drafted))
        self.strategy.accept(n_accepted, n_drafted)


def observed(strategy: Any, prompt: Sequence[int]) -> Any:
    strategy.observe(prompt)
    return strategy


def looked_up(subject: Subject, draft_type: str, **options: Any) -> Strategy:
    def make(prompt: list[int]) -> Any:
        how = DraftOptions(draft_type, ngram_size=options.get("ngram_size"))
        return observed(how.make_strategy(subject.model), prompt)

    return Strategy(draft_type, make, options)


def remembered(subject: Subject, table: NgramModTable, state: str) -> Strategy:
    """Drafts from a shared table, and adds to it."""
    vocab = vocab_size_of(subject.model)
    return Strategy("ngram-mod", lambda prompt: observed(NgramModStrategy(table, vocab), prompt), state=state)


def modelled(subject: Subject, name: str, **options: Any) -> Strategy:
    """Drafts with a draft model. Its cache already holds the prompt, as the cache of the model does."""
    draft = subject.drafts[name]
    held: dict[tuple[int, ...], list[Any]] = {}

    def make(prompt: list[int]) -> Any:
        key = tuple(prompt)
        if key not in held:
            held.clear()
            held[key] = make_prompt_cache(draft)
            fill(draft, prompt, held[key])
        return ModelDraftStrategy(draft, copied(held[key]))

    # As with the draft_model argument, each draft has this many tokens.
    options = {"num_draft_tokens": 2, "disable_adaptive_gate": True} | options
    return Strategy(f"draft model: {name}", make, options)


def main_ones(subject: Subject) -> list[Strategy]:
    """The main strategies. The first is the default, the last a draft model."""
    lookups = [looked_up(subject, name) for name in LOOKUPS]
    return lookups + [modelled(subject, name) for name in list(subject.drafts)[:1]]


def swept(subject: Subject, plan: Plan) -> Iterator[Strategy]:
    """The options of the published tables, with a fixed number of drafted tokens, and strategies not in main_ones."""
    yield looked_up(subject, AUTO)
    for k in plan.draft_lengths:
        yield looked_up(subject, AUTO, num_draft_tokens=k)
        for n in (2, 3):
            yield looked_up(subject, "ngram-simple", ngram_size=n, num_draft_tokens=k, disable_adaptive_gate=True)
    for k in plan.mod_lengths:
        yield looked_up(subject, "ngram-mod", ngram_size=16, num_draft_tokens=k, disable_adaptive_gate=True)
    for name in subject.drafts:
        for k in (2, 4):
            yield modelled(subject, name, num_draft_tokens=k)


def memory(subject: Subject, texts: Sequence[Sequence[int]]) -> NgramModTable:
    """A table that has learned some conversations."""
    table = NgramModTable(vocab_size=vocab_size_of(subject.model))
    for text in texts:
        strategy = NgramModStrategy(table)
        # The table learns a long text in slices.
        for start in range(0, len(text), 256):
            strategy.observe(text[start : start + 256])
    return table


def warmed(subject: Subject) -> None:
    """Warm up, so that the first run does not pay for compilation."""
    mx.eval(subject.model(mx.array([[1, 2]]), cache=make_prompt_cache(subject.model)))
