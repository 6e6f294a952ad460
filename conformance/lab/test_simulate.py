"""What is recorded, rows of the tables that come from it, the limits of drafting, and the trained heads."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.draft import BlockCosts, DraftStats, device_costs
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance import FIXTURE
from conformance.lab import streams as made
from conformance.lab.recorded.answers import FILES, KEPT, is_judge, read
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate import batches, follow
from conformance.lab.simulate.rivals import RIVALS, cheapest, copies, limits
from conformance.lab.simulate.run import M4, TABLES, Result, makers, run
from conformance.lab.streams import EOS, Request, Stream, loops
from conformance.lab.trained import HeadDrafts
from conformance.lab.trained.__main__ import WORK, judged, rows
from conformance.lab.trained.head import load_head
from conformance.pages import DRAFTING, USE, text_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import line


@pytest.mark.parametrize(("what", "n_kinds"), [("answers", 15), ("sampled", 15), ("edits", 5)])
def test_what_is_recorded_is_whole(what: str, n_kinds: int) -> None:
    found = read(FILES[what])[1]
    assert len({one["kind"] for one in found}) == n_kinds
    # The half that nothing is fitted to, and the other one.
    assert {is_judge(one["source"]) for one in found} == {True, False}
    for one in found:
        assert max(one["prompt"] + one["answer"]) < 49_152
        assert EOS not in one["answer"][:-1]
        if what != "edits":
            assert len(one["answer"]) == len(one["likeliest"]) == len(one["logprobs"])
            assert all(len(step) == KEPT and step == sorted(step, reverse=True) for step in one["logprobs"])
        if what == "answers":
            assert [step[0] for step in one["likeliest"]] == one["answer"]


def some(n: int) -> list[Stream]:
    """The first streams of each kind."""
    found: dict[str, list[Stream]] = {}
    for one in made.load("answers"):
        found.setdefault(one.name, []).append(one)
    return [one for kind in found.values() for one in kind[:n]]


def test_the_tables_name_their_source(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "load", lambda _: some(1)[:3])
    monkeypatch.setattr("sys.argv", ["simulate", "--costs", "gpu", "--only", "suffix"])
    simulate.main()
    shown = capsys.readouterr().out
    assert "Implied speed: recorded answers of SmolLM2, costs of gpu" in shown
    assert "|  | suffix | knows the place | knows the answer |" in shown


def test_a_row_of_the_edits() -> None:
    recorded = made.streams(simulate.SEEDS, names=["to_csv"])
    cells = [(costs, strategy) for costs in ("gpu", "m4", "cpu") for strategy in ("edit", "suffix")]
    speeds = [run(makers()[strategy], recorded, TABLES[costs]).mean("speed") for costs, strategy in cells]
    assert f"\n{line(['to_csv', *speeds])}\n" in text_of(DRAFTING)


def test_a_row_of_all_kinds_of_work() -> None:
    recorded = made.streams(simulate.SEEDS, names=["rename"])
    names = ("edit", "suffix", "ngram-simple", "ngram-mod", "transformers, 10", "longest, recent")
    assert f"\n{line(['', *names])}\n" in text_of(DRAFTING)
    speeds = [run(makers()[name], recorded).mean("speed") for name in names[:2]]
    assert f"\n{line(['rename', *speeds])} " in text_of(DRAFTING)


def test_a_row_of_the_batches() -> None:
    asked, costs = batches.requests("prose"), device_costs(batches.DEVICES[0])
    speeds = [batches.decode(asked, n, costs).speed for n in batches.SIZES[:2]]
    assert f"\n{line(['prose', *speeds])} " in text_of(USE)


def test_the_example_of_an_edit_is_what_the_strategy_does() -> None:
    assert follow.shown() in text_of(DRAFTING)


@pytest.mark.parametrize("table", TABLES)
def test_no_strategy_is_faster_than_what_knows_the_answer(table: str) -> None:
    streams = some(1)[::3]
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


def test_loops_are_seen() -> None:
    assert loops([1, 2, 3, 7, 8, 7, 8, 7, 8])
    assert loops([5, 4, 4, 4])
    assert not loops([1, 2, 3, 7, 8, 7, 8])


def gains(streams: list[tuple[Stream, HeadDrafts]]) -> bool:
    """Whether both give more tokens a forward pass than either alone, and no stream loses more than 3 %."""
    found = rows(streams, M4)
    means = {name: row.mean("tokens_a_forward") for name, row in found.items()}
    return bool(means["both"] > max(means["edit"], means["head"]) and min(row.worst for row in found.values()) > 0.97)


@pytest.mark.parametrize("work", WORK)
def test_a_head_gains_beside_a_lookup(work: str) -> None:
    """On answers and edits that it was not trained on. With the drafts of another place it gains nothing."""
    streams = list(judged(work))
    assert all(len(drafts.tokens) == len(drafts.chances) == one.n_answered for one, drafts in streams)
    assert gains(streams[:: 1 if work == "prose" else 3])
    if work == "prose":
        assert not gains([(one, replace(drafts, tokens=[[], *drafts.tokens[:-1]])) for one, drafts in streams])


@pytest.mark.parametrize("name", ["rename", "nothing_to_copy"])
def test_the_head_of_the_fixture(name: str) -> None:
    model, tokenizer = load(str(FIXTURE))
    prompt = mx.array(tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True))
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=60)]
    head, stats = load_head("fixture", model), DraftStats()
    steps = speculative_generate_step(prompt, model, draft_model=head, max_tokens=60, stats=stats)
    assert [token for token, *_ in steps] == plain
    assert stats.accepted > 0
