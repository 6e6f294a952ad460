"""The recorded answers and real edits, the limits of drafting, and the fit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from mlx_lm.draft import BlockCosts, Proposal, acceptance, edit

from conformance.lab.recorded import answers
from conformance.lab.recorded.answers import (
    ANSWERS,
    DATA,
    EDITS,
    KEPT,
    SAMPLED,
    Answer,
    KnownEdit,
    document_of,
    is_judge,
)
from conformance.lab.recorded.streams import EOS, LOOPS, load
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate.__main__ import CPU, TABLES, makers, run
from conformance.lab.simulate.baselines import RIVALS
from conformance.lab.simulate.fit import fitted, using
from conformance.lab.simulate.limit import cheapest, copies, limits
from conformance.lab.simulate.result import Result, Row
from conformance.lab.texts.recorded_streams import Request, Stream

VOCABULARY = 49_152
# How often a planted draft is right, by the tokens that match.
RIGHT = {1: 0.2, 8: 0.6}


def test_the_answers_are_whole() -> None:
    for path, least in ((ANSWERS, 150), (SAMPLED, 60)):
        recorded = [Answer(**one) for one in answers.read(path)[1]]
        assert len(recorded) >= least
        assert len({one.kind for one in recorded}) == 15
        for one in recorded:
            assert len(one.answer) == len(one.likeliest) == len(one.logprobs)
            assert all(len(step) == KEPT and step == sorted(step, reverse=True) for step in one.logprobs)
            assert max(one.prompt + one.answer) < VOCABULARY
            assert EOS not in one.answer[:-1]
            # An answer is greedy, or sampled.
            if path == ANSWERS or len(one.answer) > 20:
                assert ([step[0] for step in one.likeliest] == one.answer) == (path == ANSWERS)


def test_the_edits_are_whole() -> None:
    recorded = [KnownEdit(**one) for one in answers.read(EDITS)[1]]
    assert len({one.kind for one in recorded}) == 5
    assert all(one.answer[-1] == EOS and max(one.prompt + one.answer) < VOCABULARY for one in recorded)


@pytest.mark.parametrize("what", ["answers", "sampled", "edits"])
def test_no_document_is_in_both_parts(what: str) -> None:
    found = [one["source"] for one in answers.read(DATA / f"{what}.jsonl.gz")[1]]
    fit, judge = ({document_of(one) for one in found if is_judge(one) == part} for part in (False, True))
    assert fit
    assert judge
    assert not fit & judge
    assert len(load(what, "fit")) + len(load(what, "judge")) == len(load(what)) == len(found)


def test_the_tables_name_their_source(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "load", lambda *_: some(1)[:3])
    monkeypatch.setattr("sys.argv", ["simulate", "--costs", "gpu", "--only", "suffix"])
    simulate.main()
    shown = capsys.readouterr().out
    assert "Implied speed: recorded answers of SmolLM2, costs of gpu" in shown
    assert "|  | suffix | knows the place | knows the answer |" in shown


def some(n: int = 2) -> list[Stream]:
    """The first streams of each kind."""
    found: dict[str, list[Stream]] = {}
    for one in load("answers"):
        found.setdefault(one.name, []).append(one)
    return [one for kind in found.values() for one in kind[:n]]


@pytest.mark.parametrize("table", TABLES)
def test_no_strategy_is_faster_than_what_knows_the_answer(table: str) -> None:
    streams = some()
    best = limits(streams, TABLES[table])["knows the answer"]
    for make in (makers() | RIVALS).values():
        row = run(make, streams, TABLES[table])
        assert all(result.speed <= best.by_name[name].speed + 1e-9 for name, result in row.by_name.items())


def test_the_cheapest_blocks() -> None:
    costs = BlockCosts((1, 2, 3, 4), (1, 1.1, 1.2, 9))
    # Two blocks of three tokens are cheaper than one of four.
    assert cheapest([63] * 6, costs) == Result(6, 2, 6, 2.4)
    assert cheapest([0, 0, 0], costs) == Result(3, 3, 3, 3.0)


def test_copies_are_of_one_place() -> None:
    assert copies(Request([1, 2, 3, 4, 9, 5, 6], [2, 3, 5, 6, 7])) == [2, 1, 2, 1, 0]
    # A copy may reach into itself.
    assert copies(Request([8, 8], [8, 8, 8])) == [3, 2, 1]


def test_loops_are_in_no_mean() -> None:
    row = Row({})
    for name, spent in (("quote", 50.0), (LOOPS, 10.0)):
        row.add(Stream(name, 1, 0, (Request([0], [1] * 100),)), Result(100, 50, 100, spent))
    assert row.mean("speed") == pytest.approx(2)


class Planted:
    """Proposes the next token of the answer, or a wrong one, as often as is planted for each length of the match."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer, self.seen, self.rng = answer, -1, random.Random(7)

    def observe(self, tokens: Sequence[int]) -> None:
        self.seen += len(tokens)

    def propose(self, n_max: int) -> Proposal:
        length = self.rng.choice(list(RIGHT))
        right = self.rng.random() < RIGHT[length]
        return Proposal([self.answer[self.seen] if right else 1], [acceptance.likely_after_match(length)])

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


def test_the_fit_finds_what_was_planted() -> None:
    answer = [5] * 4000
    prior, guesses = fitted(lambda: Planted(answer), [Stream("planted", 1, 0, (Request([0], answer),))])
    for length, share in RIGHT.items():
        assert prior[length.bit_length()][0] == pytest.approx(share, abs=0.03)
    # What was not seen stays as it is shipped.
    assert prior[0] == pytest.approx(acceptance.PRIOR[0])
    assert guesses == pytest.approx(edit.PRIORS)


def test_a_fitted_prior_is_used_and_put_back() -> None:
    def speed() -> float:
        return run(makers()["edit"], some(1), CPU).mean("speed")

    shipped, hopeless = speed(), tuple((0.01,) * 3 for _ in acceptance.PRIOR)
    with using(hopeless, edit.PRIORS):
        assert speed() != shipped
    assert speed() == shipped
