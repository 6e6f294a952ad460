"""The strategies to measure: each strategy of the series with its defaults, and a draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.draft import DraftOptions, ModelDraftStrategy
from mlx_lm.models.cache import make_prompt_cache

from conformance.bench.models import Subject, copied, fill

# The strategy of "auto". The tables are about this one.
AUTO = "edit"
LOOKUPS = (AUTO, "suffix", "ngram-simple", "ngram-mod")


@dataclass(frozen=True)
class Strategy:
    """How to make a drafter for one response, and the options of the loop."""

    name: str
    make: Callable[[list[int]], Any]
    loop: dict[str, Any] = field(default_factory=dict)


class Recorded:
    """Records the length of each block with a draft: one token and the draft. The rest goes to the drafter."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.blocks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        if n_drafted > 0:
            self.blocks.append(1 + n_drafted)
        self.strategy.accept(n_accepted, n_drafted)


def observed(strategy: Any, prompt: Sequence[int]) -> Any:
    strategy.observe(prompt)
    return strategy


def looked_up(subject: Subject, draft_type: str) -> Strategy:
    options = DraftOptions(draft_type)
    return Strategy(draft_type, lambda prompt: observed(options.make_strategy(subject.model), prompt))


def modelled(name: str, draft: Any) -> Strategy:
    """Drafts with a draft model. Its cache already holds the prompt, as the cache of the model does."""
    held: dict[tuple[int, ...], list[Any]] = {}

    def make(prompt: list[int]) -> Any:
        key = tuple(prompt)
        if key not in held:
            held.clear()
            held[key] = make_prompt_cache(draft)
            fill(draft, prompt, held[key])
        return ModelDraftStrategy(draft, copied(held[key]))

    # As with the draft_model argument, each draft has this many tokens.
    return Strategy(f"draft model: {name}", make, {"num_draft_tokens": 2, "disable_adaptive_gate": True})


def main_ones(subject: Subject) -> list[Strategy]:
    """The default strategy first, the others, and a draft model if there is one."""
    lookups = [looked_up(subject, name) for name in LOOKUPS]
    return lookups if subject.draft is None else [*lookups, modelled(*subject.draft)]
