"""Random programs of several turns on every strategy: its drafts are known tokens, however it is told of them.

Texts have three different tokens, so that matches, changes and copies happen everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from mlx_lm.draft import DraftOptions, ModelDraftStrategy
from mlx_lm.draft.options import DRAFT_TYPES
from mlx_lm.draft.strategy import DraftStrategy

from conformance.oracle.findings import broken
from conformance.oracle.profiles import PROFILE
from conformance.subjects.decoded import unsteered

VOCAB, NGRAM = 3, 3
Make = Callable[[Any], Any]


def typed(name: str, **options: Any) -> Make:
    """The strategy of a draft type, as the product makes it, from a reference or without one."""
    return lambda text: DraftOptions(name, draft_reference=text, **options).make_strategy(unsteered("llama"))


def part(name: str) -> Make:
    """A part around the strategy of a text, which later stages bring."""

    def make(text: Any) -> Any:
        from mlx_lm.draft.best import Best
        from mlx_lm.draft.corrected import Corrected

        corrected = Corrected(typed("suffix")(text))
        return corrected if name == "Corrected" else Best(corrected, Corrected(typed("suffix")(text)))

    return make


# By draft type, or by class. The cache of a draft model is compared in test_decoding.py.
STRATEGIES: dict[str, Make] = {
    "auto": typed("auto"),
    "edit": typed("edit"),
    "suffix": typed("suffix"),
    "ngram-simple": typed("ngram-simple", ngram_size=NGRAM),
    "ngram-mod": typed("ngram-mod", ngram_size=NGRAM),
    "Corrected": part("Corrected"),
    "Best": part("Best"),
}


def kinds(of: Any) -> set[Any]:
    return {of}.union(*map(kinds, of.__subclasses__()))


def test_every_strategy_has_a_row() -> None:
    """The strategies of mlx_lm.draft, and its draft types."""
    from mlx_lm.draft import HeadDraftStrategy, MemoryStrategy, guide  # They have tests of their own.

    others = {DraftStrategy, HeadDraftStrategy, MemoryStrategy, ModelDraftStrategy, guide.Guided}
    found = kinds(DraftStrategy) - others - {type(make(None)) for make in STRATEGIES.values()}
    names = {f"{one.__module__}.{one.__name__}" for one in found if one.__module__.startswith("mlx_lm.")}
    if missing := names | {*DRAFT_TYPES} - STRATEGIES.keys():
        lines = (f"{one} drafts, and no test asks it: add a row to STRATEGIES in {__name__}" for one in missing)
        broken("\n".join(lines))


token = st.integers(0, VOCAB - 1)
texts = st.lists(token, max_size=24)


class Drafting(RuleBasedStateMachine):
    """A strategy, and a twin of it that may observe token by token: both draft the same tokens of the text."""

    make: ClassVar[Any]

    @initialize(reference=st.none() | st.lists(token, min_size=4, max_size=24))
    def begin(self, reference: list[int] | None) -> None:
        self.text = list(reference or ())
        # It may stand in an array.
        self.both = [self.make(one) for one in (reference, reference and mx.array(reference))]

    @rule(tokens=texts, begins=st.booleans())
    def prompt(self, tokens: list[int], begins: bool) -> None:
        self.text += tokens
        for one in self.both:
            (one.begin if begins else one.observe)(list(tokens))

    @rule(n_max=st.sampled_from([0, 1, 3, 8, 63]), n_right=st.integers(0, 8), new=texts, apart=st.booleans())
    def draft(self, n_max: int, n_right: int, new: list[int], apart: bool) -> None:
        """A draft, of which some tokens are right, and what the model says then."""
        one, twin = self.both
        # The planner may ask, feed nothing, and ask again.
        one.propose(n_max)
        one.accept(0, 0)
        draft, again = (list(each.propose(n_max)) for each in self.both)
        about = f"after {self.text}, asked for {n_max}: it drafts {draft}"
        assert draft == again, f"{about}, and where the same tokens came one by one {again}"
        assert len(draft) <= n_max, f"{about}, which are {len(draft)}"
        assert all(type(t) is int and t in self.text for t in draft), f"{about}: not tokens of it"
        drawn = [*draft[:n_right], *new][: n_max + 1]
        for each in self.both:
            each.accept(len(draft[:n_right]), len(draft))
        self.text += drawn
        one.observe(drawn)
        for part in [[t] for t in drawn] if apart else [drawn]:
            twin.observe(part)


# What fails is made small: a program of a few lines.
PHASES = [Phase.generate, Phase.shrink]
PROGRAMS = settings(PROFILE, max_examples=max(PROFILE.max_examples, 100), phases=PHASES, stateful_step_count=12)


@pytest.mark.parametrize("name", STRATEGIES)
def test_programs_of_several_turns(name: str) -> None:
    run_state_machine_as_test(type(name, (Drafting,), {"make": staticmethod(STRATEGIES[name])}), settings=PROGRAMS)
