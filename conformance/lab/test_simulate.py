"""The recorded answers and edits, what is made of them, the limits of drafting, the fit and the trained heads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.draft import BlockCosts, DraftStats, Proposal, acceptance, device_costs, edit
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance import FIXTURE
from conformance.lab import streams as made
from conformance.lab.recorded.answers import FILES, KEPT, Answer, KnownEdit, document_of, is_judge, read
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate import batches, follow
from conformance.lab.simulate.fit import fitted, using
from conformance.lab.simulate.rivals import RIVALS, cheapest, copies, limits
from conformance.lab.simulate.run import CPU, TABLES, Result, Row, makers, run
from conformance.lab.streams import EOS, LOOPS, Request, Stream, loops
from conformance.lab.texts import edits
from conformance.lab.trained import HeadDrafts
from conformance.lab.trained.__main__ import WORK, judged, rows
from conformance.lab.trained.head import load_head
from conformance.pages import DRAFTING, USE, text_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import line

VOCABULARY = 49_152
# How often a planted draft is right, by the tokens that match.
RIGHT = {1: 0.2, 8: 0.6}


@pytest.mark.parametrize("what", ["answers", "sampled"])
def test_the_answers_are_whole(what: str) -> None:
    recorded = [Answer(**one) for one in read(FILES[what])[1]]
    assert len({one.kind for one in recorded}) == 15
    for one in recorded:
        assert len(one.answer) == len(one.likeliest) == len(one.logprobs)
        assert all(len(step) == KEPT and step == sorted(step, reverse=True) for step in one.logprobs)
        assert max(one.prompt + one.answer) < VOCABULARY
        assert EOS not in one.answer[:-1]
        # An answer is greedy, or sampled.
        if what == "answers" or len(one.answer) > 20:
            assert ([step[0] for step in one.likeliest] == one.answer) == (what == "answers")


def test_the_edits_are_whole() -> None:
    recorded = [KnownEdit(**one) for one in read(FILES["edits"])[1]]
    assert len({one.kind for one in recorded}) == 5
    assert all(one.answer[-1] == EOS and max(one.prompt + one.answer) < VOCABULARY for one in recorded)
    assert not set(edits.NAMES) & set(made.NAMES)


@pytest.mark.parametrize("what", FILES)
def test_no_document_is_in_both_parts(what: str) -> None:
    found = [one["source"] for one in read(FILES[what])[1]]
    fit, judge = ({document_of(one) for one in found if is_judge(one) == part} for part in (False, True))
    assert fit
    assert judge
    assert not fit & judge
    assert len(made.load(what, "fit")) + len(made.load(what, "judge")) == len(made.load(what)) == len(found)


def some(n: int) -> list[Stream]:
    """The first streams of each kind."""
    found: dict[str, list[Stream]] = {}
    for one in made.load("answers"):
        found.setdefault(one.name, []).append(one)
    return [one for kind in found.values() for one in kind[:n]]


def test_the_tables_name_their_source(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "load", lambda *_: some(1)[:3])
    monkeypatch.setattr("sys.argv", ["simulate", "--costs", "gpu", "--only", "suffix"])
    simulate.main()
    shown = capsys.readouterr().out
    assert "Implied speed: recorded answers of SmolLM2, costs of gpu" in shown
    assert "|  | suffix | knows the place | knows the answer |" in shown


@pytest.mark.parametrize("name", ["rename_one", "to_csv"])
def test_a_row_of_the_edits(name: str) -> None:
    recorded = made.streams(simulate.SEEDS, names=[name])
    cells = [(costs, strategy) for costs in ("gpu", "m4", "cpu") for strategy in ("edit", "suffix")]
    speeds = [run(makers()[strategy], recorded, TABLES[costs]).mean("speed") for costs, strategy in cells]
    assert f"\n{line([name, *speeds])}\n" in text_of(DRAFTING)


def test_a_row_of_all_kinds_of_work() -> None:
    """The first one: the memory of ngram-mod is empty there."""
    recorded, compared = made.streams(simulate.SEEDS, names=["rename"]), makers() | RIVALS
    names = ("edit", "suffix", "ngram-simple", "ngram-mod", "transformers, 10", "longest, recent")
    assert f"\n|  | {' | '.join(names)} |\n" in text_of(DRAFTING)
    speeds = [run(compared[name], recorded).mean("speed") for name in names]
    assert f"\n{line(['rename', *speeds])}\n" in text_of(DRAFTING)


def test_a_row_of_the_batches() -> None:
    asked, cells = batches.requests("prose"), [(device, n) for device in batches.DEVICES for n in batches.SIZES]
    speeds = [batches.decode(asked, n, device_costs(device)).speed for device, n in cells]
    assert f"\n{line(['prose', *speeds])}\n" in text_of(USE)


def test_the_example_of_an_edit_is_what_the_strategy_does() -> None:
    assert follow.shown() in text_of(DRAFTING)


@pytest.mark.parametrize("table", TABLES)
def test_no_strategy_is_faster_than_what_knows_the_answer(table: str) -> None:
    streams = some(1)
    best = limits(streams, TABLES[table])["knows the answer"]
    for name, make in (makers() | RIVALS).items():
        for kind, result in run(make, streams, TABLES[table]).by_name.items():
            assert result.speed <= best.by_name[kind].speed + 1e-9, name


def test_the_limits() -> None:
    costs = BlockCosts((1, 2, 3, 4), (1, 1.1, 1.2, 9))
    # Two blocks of three tokens are cheaper than one of four.
    assert cheapest([63] * 6, costs) == Result(6, 2, 6, 2.4)
    assert cheapest([0, 0, 0], costs) == Result(3, 3, 3, 3.0)
    assert copies(Request([1, 2, 3, 4, 9, 5, 6], [2, 3, 5, 6, 7])) == [2, 1, 2, 1, 0]
    # A copy may reach into itself.
    assert copies(Request([8, 8], [8, 8, 8])) == [3, 2, 1]


def test_loops_are_seen_and_in_no_mean() -> None:
    assert loops([1, 2, 3, 7, 8, 7, 8, 7, 8])
    assert loops([5, 4, 4, 4])
    assert not loops([1, 2, 3, 7, 8, 7, 8])
    row = Row()
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


# Where a lookup alone gives more tokens a forward pass, and by how much: on a CPU the head is hardly asked there.
BEHIND = {("real edits", "cpu"): 0.02}


def gains(streams: list[tuple[Stream, HeadDrafts]], device: str, behind: float = 0.0) -> bool:
    """Whether both give more tokens a forward pass than either alone, and no stream loses more than 3 %."""
    found = rows(streams, TABLES[device])
    means = {name: row.mean("tokens_a_forward") for name, row in found.items()}
    least = (1 - behind) * max(means["edit"], means["head"])
    return bool(means["both"] > least and min(row.worst for row in found.values()) > 0.97)


@pytest.mark.parametrize("work", WORK)
def test_a_head_gains_beside_a_lookup(work: str) -> None:
    """On answers and edits that it was not trained on, each of whose places has a draft."""
    streams = list(judged(work))
    assert len(streams) > 20
    assert all(len(drafts.tokens) == len(drafts.chances) == one.n_answered for one, drafts in streams)
    for device in TABLES:
        assert gains(streams, device, BEHIND.get((work, device), 0.0)), device


@pytest.mark.planted
def test_drafts_of_another_place_are_found() -> None:
    late = [(one, replace(drafts, tokens=[[], *drafts.tokens[:-1]])) for one, drafts in judged("prose")]
    assert not gains(late, "m4")


@pytest.mark.parametrize("name", ["rename", "nothing_to_copy"])
def test_the_head_of_the_fixture(name: str) -> None:
    model, tokenizer = load(str(FIXTURE))
    prompt = mx.array(tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True))
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=60)]
    head, stats = load_head("fixture", model), DraftStats()
    steps = speculative_generate_step(prompt, model, draft_model=head, max_tokens=60, stats=stats)
    assert [token for token, *_ in steps] == plain
    assert stats.accepted > 0
