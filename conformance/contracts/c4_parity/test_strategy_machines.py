"""Random programs of several turns on every strategy, compared with a plain scan of the text.

Texts have two or three different tokens, so that matches, changes and copies happen everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from mlx_lm.draft import (
    EditStrategy,
    ModelDraftStrategy,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    Proposal,
    SuffixStrategy,
)
from mlx_lm.models.cache import KVCache

from conformance.caches.machines import PROFILE
from conformance.testing.faults.planted import planted

VOCAB, NGRAM = 3, 3
Text = list[int | None]


class OfAllTokens:
    """A model whose next token depends on all tokens that its cache holds, in their order."""

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        n = inputs.shape[1]
        held, _ = cache[0].update_and_fetch(*2 * [inputs.astype(mx.float32)[:, None, :, None]])
        held = held.reshape(-1).astype(mx.int32)
        sums = mx.cumsum(held * (1 + mx.arange(held.size) % 5))
        return mx.eye(VOCAB)[sums[-n:] % VOCAB][None]

    @staticmethod
    def follows(text: Text) -> int:
        return sum((token or 0) * (1 + i % 5) for i, token in enumerate(text)) % VOCAB


# A text is the reference, a separator and the sequence. Each returns what a scan says, or what is wrong with a draft.
def latest(text: Text, draft: list[int], n_max: int) -> bool:
    """The draft is what followed the latest occurrence of the last three tokens, or of two. One token goes on."""
    for n in (NGRAM, NGRAM - 1):
        for end in range(len(text) - 1, n - 1, -1):
            if len(text) > n and text[end - n : end] == text[-n:] and text[end] is not None:
                following = text[end : end + n_max] if end < len(text) - 1 else text[end:] * n_max
                return draft == following[: following.index(None) if None in following else None]
    return draft == []


def longest(text: Text, draft: Any, n_max: int) -> bool:
    """The draft follows an occurrence of the longest end of the text that stands elsewhere too."""
    ends = range(1, len(text))
    length = max((common(text, end) for end in ends), default=0)
    if length == 0:
        return bool(draft == [])
    return any(draft == repeated(text[end:], n_max) for end in ends if common(text, end) == length)


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


def remembered(text: Text, draft: list[int], n_max: int) -> bool:
    """Each token is what followed the three tokens before it last."""
    followed = {tuple(text[i : i + NGRAM]): text[i + NGRAM] for i in range(len(text) - NGRAM)}
    window, wanted = text[-NGRAM:], list[int | None]()
    while len(window) == NGRAM and len(wanted) < n_max and tuple(window) in followed:
        wanted.append(followed[tuple(window)])
        window = [*window[1:], wanted[-1]]
    return draft == wanted


def greedy(text: Text, draft: list[int], n_max: int) -> bool:
    text, wanted = list(text), []
    for _ in range(n_max if text else 0):
        wanted.append(OfAllTokens.follows(text))
        text.append(wanted[-1])
    return draft == wanted


def any_tokens(text: Text, draft: list[int], n_max: int) -> bool:
    return set(draft) <= set(text) - {None}


@dataclass
class Kind:
    make: Callable[[Sequence[int] | None], Any]
    is_right: Callable[[Text, Any, int], bool]
    takes_reference: bool = True


def new_memory(**kwargs: Any) -> NgramModStrategy:
    return NgramModStrategy(NgramModTable(NGRAM, vocab_size=VOCAB), **kwargs)


KINDS: dict[str, Kind] = {
    "simple": Kind(lambda text: NgramSimpleStrategy(NGRAM, draft_reference=text), latest),
    "suffix": Kind(SuffixStrategy, longest),
    "edit": Kind(EditStrategy, any_tokens),
    "ngram-mod": Kind(lambda _: new_memory(), remembered, False),
    "ngram-mod with a lookup": Kind(lambda text: new_memory(lookup=EditStrategy(text)), any_tokens),
    "model": Kind(lambda _: ModelDraftStrategy(OfAllTokens(), [KVCache()], 4), greedy, False),
}
token = st.integers(0, VOCAB - 1)
texts = st.lists(token, max_size=24)
# A turn begins with a prompt, then a draft of up to n tokens follows, of which k are right, then these tokens.
Draft = tuple[int, int, list[int], bool]
Turn = tuple[list[int], list[Draft]]
drafts = st.tuples(st.sampled_from([0, 1, 3, 8, 63]), st.integers(0, 70), st.lists(token, max_size=7), st.booleans())
turns = st.lists(st.tuples(texts, st.lists(drafts, max_size=6)), max_size=4)


def programs(turns: list[Turn]) -> Iterator[tuple[list[int], int, int, list[int], bool]]:
    for prompt, steps in turns:
        for i, step in enumerate(steps):
            yield (prompt if i == 0 else [], *step)


def complaints(name: str, reference: list[int] | None, turns: list[Turn]) -> list[str]:
    """What is wrong with the proposals of a program, and whether a twin that observes token by token agrees."""
    kind = KINDS[name]
    reference = reference if kind.takes_reference else None
    one, twin = kind.make(reference), kind.make(reference)
    text: Text = [*reference, None] if reference else []
    wrong: list[str] = []
    for prompt, n_max, n_right, tokens, observes_apart in programs(turns):
        for strategy in (one, twin):
            strategy.observe(list(prompt))
        text += prompt
        # The planner may ask, feed nothing, and ask again.
        one.propose(n_max)
        one.accept(0, 0)
        draft = one.propose(n_max)
        if list(twin.propose(n_max)) != draft:
            wrong.append(f"{text}: the twin drafts something else")
        if len(draft) > n_max or not all(type(t) is int and 0 <= t < VOCAB for t in draft):
            wrong.append(f"{text}: {draft} for {n_max}")
        elif not kind.is_right(text, draft, n_max):
            wrong.append(f"{text}: {draft}")
        right = draft[:n_right]
        for strategy in (one, twin):
            # Only a draft model has anything to undo, and needs the truth for it.
            strategy.accept(len(right) if name == "model" else n_right, len(draft))
        # A model accepts the tokens that were drafted, and says one more.
        new = [*right, *tokens][: n_max + 1]
        text += new
        one.observe(new)
        for part in [[t] for t in new] if observes_apart else [new]:
            twin.observe(part)
    return wrong


THE_REPORTED = [([0, 0, 1, 0, 0, 1, 0, 0, 1, 0], [(63, 0, [0], False), (63, 0, [0, 1, 1, 1, 0, 0], True)])]


@pytest.mark.parametrize("name", KINDS)
@settings(PROFILE, deadline=None)
@given(reference=st.none() | texts, turns=turns)
@example(reference=None, turns=THE_REPORTED)
def test_programs_of_several_turns(name: str, reference: list[int] | None, turns: list[Turn]) -> None:
    assert complaints(name, reference, turns) == []


def see_what_is_to_come(strategy: EditStrategy, tokens: Sequence[int]) -> None:
    """A planted fault: tokens are compared with a text that holds the tokens after them."""
    SuffixStrategy.observe(strategy, tokens)
    if strategy._changes is not None:
        for token in tokens:
            strategy._follow(token)
            del strategy._tokens[-1], strategy._prefix_suffixes[-1]


def across_the_separator(strategy: NgramSimpleStrategy, n_max: int) -> Sequence[int]:
    strategy._boundary = -1
    return list(propose(strategy, n_max))


def forget_nothing(strategy: ModelDraftStrategy, n_accepted: int, n_drafted: int) -> None:
    strategy._n_fed = strategy._n_known + max(strategy._n_drafted - 1, 0)
    strategy._n_drafted = 0


def keep_the_draft(strategy: ModelDraftStrategy, n_accepted: int, n_drafted: int) -> None:
    """The rejected tokens stay in the cache of the draft model."""
    strategy._n_fed = strategy._n_known - 1 + n_accepted
    strategy._n_drafted = 0


def remember_half(table: NgramModTable, tokens: Any, *args: Any) -> None:
    learn(table, tokens[: len(tokens) // 2], *args)


def no_longer(strategy: SuffixStrategy, n_max: int) -> Proposal:
    draft = longest_draft(strategy, n_max)
    return Proposal(draft[: n_max - 1], draft.likely)


propose, learn, longest_draft = NgramSimpleStrategy.propose, NgramModTable._learn, SuffixStrategy.propose


@pytest.mark.planted
@planted(
    ("edit", EditStrategy, "observe", see_what_is_to_come),
    ("simple", NgramSimpleStrategy, "propose", across_the_separator),
    ("model", ModelDraftStrategy, "accept", forget_nothing),
    ("model", ModelDraftStrategy, "accept", keep_the_draft),
    ("ngram-mod", NgramModTable, "_learn", remember_half),
    ("suffix", SuffixStrategy, "propose", no_longer),
)
def test_a_planted_fault_is_found(where: str) -> None:
    """In one of two hundred programs, or it raises."""

    @settings(PROFILE, deadline=None, max_examples=200, database=None, phases=[Phase.explicit, Phase.generate])
    @given(reference=st.none() | texts, turns=turns)
    @example(reference=None, turns=THE_REPORTED)
    def check(reference: list[int] | None, turns: list[Turn]) -> None:
        assert complaints(where, reference, turns) == []

    with pytest.raises((AssertionError, IndexError)):
        check()
