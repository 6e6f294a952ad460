"""Random programs of several turns on every strategy, compared with a plain scan of the text.

Texts have three different tokens, so that matches, changes and copies happen everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from mlx_lm.draft import DraftOptions, ModelDraftStrategy
from mlx_lm.draft.options import DRAFT_TYPES
from mlx_lm.draft.strategy import DraftStrategy
from mlx_lm.models.cache import KVCache

from conformance.oracle.findings import broken
from conformance.oracle.profiles import PROFILE

VOCAB, NGRAM = 3, 3
Text = list[int | None]


class OfAllTokens:
    """A model whose next token depends on all tokens that its cache holds, in their order."""

    layers = (None,)

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        n = inputs.shape[1]
        held, _ = cache[0].update_and_fetch(*2 * [inputs.astype(mx.float32)[:, None, :, None]])
        held = held.reshape(-1).astype(mx.int32)
        sums = mx.cumsum(held * (1 + mx.arange(held.size) % 5))
        return mx.eye(VOCAB)[sums[-n:] % VOCAB][None]

    @staticmethod
    def follows(text: Text) -> int:
        return sum((token or 0) * (1 + i % 5) for i, token in enumerate(text)) % VOCAB


# A text is the reference, a separator and the sequence. Each says which drafts of up to n tokens are right.
def latest(text: Text, n_max: int) -> list[Text]:
    """What followed the latest occurrence of the last three tokens, or of two. One token goes on."""
    for n in (NGRAM, NGRAM - 1):
        for end in range(len(text) - 1, n - 1, -1):
            if len(text) > n and text[end - n : end] == text[-n:] and text[end] is not None:
                following = text[end : end + n_max] if end < len(text) - 1 else text[end:] * n_max
                return [following[: following.index(None) if None in following else None]]
    return [[]]


def longest(text: Text, n_max: int) -> list[Text]:
    """What follows any occurrence of the longest end of the text that stands elsewhere too."""
    lengths = {end: common(text, end) for end in range(1, len(text))}
    length = max(lengths.values(), default=0)
    return [repeated(text[end:], n_max) for end, n in lengths.items() if n == length > 0] or [[]]


def common(text: Text, end: int) -> int:
    """How many tokens before a place are the last tokens of the text, up to a separator."""
    n = 0
    while n < end and text[end - 1 - n] == text[-1 - n] is not None:
        n += 1
    return n


def repeated(following: Text, n_max: int) -> Text:
    if None in following:
        return following[: min(following.index(None), n_max)]
    return (following * (n_max // len(following) + 1))[:n_max]


def remembered(text: Text, n_max: int) -> list[Text]:
    """Each token is what followed the three tokens before it last."""
    followed = {tuple(text[i : i + NGRAM]): text[i + NGRAM] for i in range(len(text) - NGRAM)}
    draft = text[-NGRAM:] if len(text) >= NGRAM else []
    while draft and len(draft) < n_max + NGRAM and tuple(draft[-NGRAM:]) in followed:
        draft.append(followed[tuple(draft[-NGRAM:])])
    return [draft[NGRAM:]]


def greedy(text: Text, n_max: int) -> list[Text]:
    text, n = list(text), len(text)
    while text and len(text) < n + n_max:
        text.append(OfAllTokens.follows(text))
    return [text[n:]]


class Maker(NamedTuple):
    """What makes a strategy, from a reference or without one, and which drafts are right: None for any known tokens."""

    make: Callable[[Any], Any]
    right: Callable[[Text, int], list[Text]] | None
    takes_reference: bool = True


def typed(name: str, **options: Any) -> Callable[[Any], Any]:
    """The strategy of a draft type, as the product makes it."""
    return lambda text: DraftOptions(name, draft_reference=text, **options).make_strategy(OfAllTokens())


def part(name: str) -> Callable[[Any], Any]:
    """A part around the strategy of a text, which later stages bring."""

    def make(text: Any) -> Any:
        from mlx_lm.draft.best import Best
        from mlx_lm.draft.corrected import Corrected

        corrected = Corrected(typed("suffix")(text))
        return corrected if name == "Corrected" else Best(corrected, Corrected(typed("suffix")(text)))

    return make


# By draft type, or by class.
STRATEGIES = {
    "auto": Maker(typed("auto"), None),
    "edit": Maker(typed("edit"), None),
    "suffix": Maker(typed("suffix"), longest),
    "ngram-simple": Maker(typed("ngram-simple", ngram_size=NGRAM), latest),
    "ngram-mod": Maker(typed("ngram-mod", ngram_size=NGRAM), remembered, takes_reference=False),
    "Corrected": Maker(part("Corrected"), longest),
    "Best": Maker(part("Best"), longest),
    "ModelDraftStrategy": Maker(lambda _: ModelDraftStrategy(OfAllTokens(), [KVCache()], 4), greedy, False),
}


def kinds(of: Any) -> set[Any]:
    return {of}.union(*map(kinds, of.__subclasses__()))


def test_every_strategy_has_a_row() -> None:
    """The strategies of mlx_lm.draft, and its draft types."""
    from mlx_lm.draft import HeadDraftStrategy, MemoryStrategy, guide  # They have tests of their own.

    others = {DraftStrategy, HeadDraftStrategy, MemoryStrategy, guide.Guided}
    found = kinds(DraftStrategy) - others - {type(maker.make(None)) for maker in STRATEGIES.values()}
    names = {f"{one.__module__}.{one.__name__}" for one in found if one.__module__.startswith("mlx_lm.")}
    if missing := names | {*DRAFT_TYPES} - STRATEGIES.keys():
        lines = (f"{one} drafts, and no test asks it: add a row to STRATEGIES in {__name__}" for one in missing)
        broken("\n".join(lines))


token = st.integers(0, VOCAB - 1)
texts = st.lists(token, max_size=24)


class Drafting(RuleBasedStateMachine):
    """A strategy, and a twin of it that may observe token by token: both draft what the text says."""

    maker: ClassVar[Maker]

    @initialize(reference=st.none() | st.lists(token, min_size=4, max_size=24))
    def begin(self, reference: list[int] | None) -> None:
        reference = reference if self.maker.takes_reference else None
        self.text: Text = [*reference, None] if reference else []
        # It may stand in an array.
        self.both = [self.maker.make(one) for one in (reference, reference and mx.array(reference))]

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
        assert all(type(t) is int and t in self.text for t in draft) or self.maker.right, f"{about}: not tokens of it"
        if self.maker.right is not None:
            right = self.maker.right(self.text, n_max)
            assert draft in right, f"{about} instead of {' or '.join(map(str, right))}"
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
    run_state_machine_as_test(type(name, (Drafting,), {"maker": STRATEGIES[name]}), settings=PROGRAMS)


def test_the_program_that_once_failed() -> None:
    """The place that an edit goes on from, where a copy reaches into what was drafted."""
    state = type("edit", (Drafting,), {"maker": STRATEGIES["edit"]})()
    state.begin(None)
    state.prompt([0, 0, 1, 0, 0, 1, 0, 0, 1, 0], begins=False)
    state.draft(63, 0, [0], apart=False)
    state.draft(63, 0, [0, 1, 1, 1, 0, 0], apart=True)
