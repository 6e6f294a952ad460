"""Following an edit gains over the longest match, and the strategy finds its place in the text.

Nothing is timed: the costs of blocks come from a table. The numbers in docs/drafting.md come from more and longer
streams. CONFORMANCE_PROFILE=full draws 2000 edits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import geometric_mean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.draft import EditStrategy, SuffixStrategy

from conformance.lab.simulate.run import TABLES, run
from conformance.lab.streams import Stream, bpe, streams, words
from conformance.lab.texts import edits
from conformance.oracle.profiles import PROFILE

ENCODINGS = {"bpe": bpe, "words": words}
# The least mean speed over all edits, relative to the longest match, and the least speed of one workload.
GAINS = {"cpu": 1.07, "m4": 1.07, "gpu": 1.6}
SLOWEST = 0.94
SEEDS, SIZES = [900], (600, 1500)


@cache
def recorded(encoding: str) -> list[Stream]:
    return streams(SEEDS, SIZES, ENCODINGS[encoding](), edits.NAMES)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_edits_are_faster_than_with_the_longest_match(encoding: str, table: str) -> None:
    """And fewer drafts are wrong."""
    followed, longest = (run(make, recorded(encoding), TABLES[table]) for make in (EditStrategy, SuffixStrategy))
    gains = {name: result.speed / longest.by_name[name].speed for name, result in followed.by_name.items()}
    gain, (least, name) = geometric_mean(gains.values()), min((gain, name) for name, gain in gains.items())
    assert gain > GAINS[table], f"edit is {gain:.3f} times as fast as suffix, not {GAINS[table]}"
    assert least >= SLOWEST, f"edit is {least:.3f} times as fast as suffix on {name}, not {SLOWEST}"
    wrong, others = (row.mean("wrong_a_right") for row in (followed, longest))
    assert wrong < others, f"edit has {wrong:.3f} wrong tokens for a right one, suffix {others:.3f}"


def test_a_change_that_does_not_come_again_is_given_up() -> None:
    """One token is replaced at the first places, and stays at the others, where all else is new."""
    old, new, places, changed = 1, 2, 30, 4
    parts = [[10 * i + n for n in range(10, 18)] for i in range(places)]
    source = [token for part in parts for token in (*part, old)]
    answer = [token for i, part in enumerate(parts) for token in (*part, new if i < changed else old)]
    strategy, wrong = EditStrategy(), 0
    strategy.begin(source)
    for i, token in enumerate(answer):
        draft = strategy.propose(1)
        wrong += i > 9 * changed and list(draft) == [new]
        strategy.accept(0, len(draft))
        strategy.observe([token])
    assert wrong <= 4, f"it is drafted {wrong} times at {places - changed} places where it is not done"


Operation = tuple[str, int, int]
# Operations on a source of distinct tokens: copy, replace, insert or drop.
operations = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(6, 20), st.just(0)),
        st.tuples(st.just("replace"), st.integers(1, 6), st.integers(1, 6)),
        st.tuples(st.just("insert"), st.just(0), st.integers(1, 6)),
        st.tuples(st.just("drop"), st.integers(1, 20), st.just(0)),
    ),
    max_size=12,
)


def program(drawn: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """A source and its edited form. Copied tokens come before and between all changes."""
    source: list[int] = []
    answer: list[int] = []
    new = 10_000
    for name, n_old, n_new in [operation for one in drawn for operation in (("copy", 8, 0), one)]:
        old = list(range(len(source), len(source) + n_old))
        source += old
        answer += old if name == "copy" else range(new, new + n_new)
        new += n_new
    end = list(range(len(source), len(source) + 12))
    return source + end, answer + end


LONG: list[Operation] = [("replace", 3, 2), ("insert", 0, 4), ("drop", 20, 0), ("replace", 1, 6), ("copy", 9, 0)]


@settings(deadline=None, max_examples=max(100, PROFILE.max_examples))
@given(operations)
@example([("replace", 1, 2), ("replace", 1, 2), ("replace", 2, 1)])
@example([("replace", 1, 1), ("replace", 1, 1), ("drop", 2, 0)])
@example(LONG)
def test_the_place_is_that_of_an_edit_distance(drawn: list[Operation]) -> None:
    """After a copied token the next one of the source is drafted.

    The same tokens follow the source in another order, so one token alone does not show the place. Earlier edits may
    make another place likelier, but this one has to be among the guesses.
    """
    source, answer = program(drawn)
    # A copied token is its own place in the source, and all of them are in order: no edit distance is shorter.
    pairs = {i: token for i, token in enumerate(answer) if token < len(source)}
    strategy = EditStrategy()
    strategy.begin([*source, *source[::-2], *source[-2::-2]])
    for i, token in enumerate(answer):
        draft = list(strategy.propose(4))
        place = pairs.get(i - 1)
        if i > 7 and place is not None:
            due = source[place + 1 : place + 5]
            is_alone = pairs.get(i - 2) != place - 1
            guessed = [strategy._tokens[one.place] for one in strategy._guesses]
            is_right = draft[: len(due)] == due or (is_alone and due[0] in guessed)
            assert is_right, f"after token {i} of the answer, a copy of {place}, it drafts {draft} instead of {due}"
        strategy.accept(0, len(draft))
        strategy.observe([token])
