"""The gain of following an edit, and that the strategy finds its place in the text.

Nothing is timed: the costs of blocks come from a table. The numbers in docs/drafting.md come from more and longer
streams. CONFORMANCE_PROFILE=full draws 2000 edits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from statistics import geometric_mean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.draft import EditStrategy, SuffixStrategy, changes
from mlx_lm.draft import edit as module
from mlx_lm.draft.changes import Changes

from conformance.caches.machines import PROFILE
from conformance.lab.simulate.__main__ import CPU, GPU, M4, run
from conformance.lab.simulate.result import Row
from conformance.lab.texts import edits
from conformance.lab.texts.recorded_streams import NAMES, Stream, bpe, streams, words

TABLES = {"cpu": CPU, "m4": M4, "gpu": GPU}
ENCODINGS = {"bpe": bpe, "words": words}
# The least mean speed over all edits, relative to the longest match, and the least speed of one workload.
GAINS = {"cpu": 1.07, "m4": 1.07, "gpu": 1.6}
SLOWEST = 0.94
SEEDS, SIZES = [900], (600, 1500)


@cache
def recorded(encoding: str) -> list[Stream]:
    return streams(SEEDS, SIZES, ENCODINGS[encoding](), edits.NAMES)


@cache
def longest(encoding: str, table: str) -> Row:
    return run(SuffixStrategy, recorded(encoding), TABLES[table])


@cache
def followed(encoding: str, table: str) -> Row:
    return run(EditStrategy, recorded(encoding), TABLES[table])


def ratios(encoding: str, table: str, row: Row) -> dict[str, float]:
    return {name: result.speed / longest(encoding, table).by_name[name].speed for name, result in row.by_name.items()}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_edits_are_faster_than_with_the_longest_match(encoding: str, table: str) -> None:
    """And fewer drafts are wrong."""
    gains = ratios(encoding, table, followed(encoding, table))
    assert geometric_mean(gains.values()) > GAINS[table]
    assert {name: gain for name, gain in gains.items() if gain < SLOWEST} == {}
    wrong = [row(encoding, table).mean("wrong_a_right") for row in (followed, longest)]
    assert wrong[0] < wrong[1]


def without_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "learn", lambda *_: False)


def without_guesses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "LEAST_COPY", 10**9)


def always_sure(patch: pytest.MonkeyPatch) -> None:
    """A planted fault: a learned change is applied at every place with one of its tokens."""
    patch.setattr(changes, "PRIORS", (1.0,) * 6)
    patch.setattr(Changes, "_not_done", lambda *_: None)


@pytest.mark.planted
@pytest.mark.parametrize("fault", [without_changes, without_guesses])
def test_a_worse_follower_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    worse = run(EditStrategy, recorded("bpe"), GPU)
    assert geometric_mean(ratios("bpe", "gpu", worse).values()) < GAINS["gpu"]


@pytest.mark.planted
def test_changes_that_are_never_given_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = followed("bpe", "gpu").mean("wrong_a_right")
    always_sure(monkeypatch)
    assert run(EditStrategy, recorded("bpe"), GPU).mean("wrong_a_right") > 1.1 * before


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


def astray(drawn: Sequence[Operation]) -> list[int]:
    """The places after a copied token where the strategy does not draft the next token of the source.

    The same tokens follow the source in another order, so one token alone does not show the place. Earlier edits may
    make another place likelier, but this one has to be among the guesses.
    """
    source, answer = program(drawn)
    # A copied token is its own place in the source, and all of them are in order: no edit distance is shorter.
    pairs = {i: token for i, token in enumerate(answer) if token < len(source)}
    strategy, found = EditStrategy(), []
    strategy.begin([*source, *source[::-2], *source[-2::-2]])
    for i, token in enumerate(answer):
        draft = list(strategy.propose(4))
        place = pairs.get(i - 1)
        if i > 7 and place is not None:
            due = source[place + 1 : place + 5]
            is_alone = pairs.get(i - 2) != place - 1
            guessed = [strategy._tokens[one.place] for one in strategy._guesses]
            if draft[: len(due)] != due and not (is_alone and due[0] in guessed):
                found.append(i)
        strategy.accept(0, len(draft))
        strategy.observe([token])
    return found


@settings(deadline=None, max_examples=max(100, PROFILE.max_examples))
@given(operations)
@example([("replace", 1, 2), ("replace", 1, 2), ("replace", 2, 1)])
@example([("replace", 1, 1), ("replace", 1, 1), ("drop", 2, 0)])
def test_the_place_is_that_of_an_edit_distance(drawn: list[Operation]) -> None:
    assert astray(drawn) == []


LONG: list[Operation] = [("replace", 3, 2), ("insert", 0, 4), ("drop", 20, 0), ("replace", 1, 6), ("copy", 9, 0)]


@pytest.mark.planted
@pytest.mark.parametrize(("name", "value"), [("_behind", lambda *_: iter(())), ("WINDOW", 4)])
def test_a_lost_place_is_found(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    assert astray(LONG) == []
    monkeypatch.setattr(*((EditStrategy, name) if name.startswith("_") else (module, name)), value)
    assert astray(LONG) != []


def test_streams_of_all_kinds() -> None:
    assert len(edits.NAMES) > 20
    assert not set(edits.NAMES) & set(NAMES)
