"""Rows of the tables that come from what is recorded, the limit of drafting, and the trained heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.draft import DraftStats, EditStrategy, SuffixStrategy, device_costs
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance import FIXTURE
from conformance.lab import streams as made
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate import batches
from conformance.lab.simulate.page import by_kind
from conformance.lab.simulate.rivals import PUBLISHED, RIVALS, NgramMod, limits, others
from conformance.lab.simulate.run import M4, TABLES, makers, run
from conformance.lab.streams import Stream
from conformance.lab.trained.__main__ import WORK, HeadDrafts, judged, rows
from conformance.lab.trained.head import load_head
from conformance.oracle.profiles import FULL
from conformance.pages import DRAFTING, text_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import line

BENCHMARKS = "docs/benchmarks.md"


def test_a_row_of_the_edits() -> None:
    recorded = made.streams(simulate.SEEDS, names=["to_csv"])
    cells = [(costs, strategy) for costs in ("gpu", "m4", "cpu")[: 3 if FULL else 1] for strategy in ("edit", "suffix")]
    speeds = [run(makers()[strategy], recorded, TABLES[costs]).mean("speed") for costs, strategy in cells]
    assert f"\n{line(['to_csv', *speeds])}" in text_of(DRAFTING)


def test_a_row_of_all_kinds_of_work() -> None:
    recorded = made.streams(simulate.SEEDS, names=["rename"])
    names = ("edit", "suffix", "ngram-simple", "ngram-mod", "transformers, 10", "longest, recent")
    assert f"\n{line(['', *names])}\n" in text_of(DRAFTING)
    speeds = [run(makers()[name], recorded).mean("speed") for name in names[:2]]
    assert f"\n{line(['rename', *speeds])} " in text_of(DRAFTING)


def test_a_row_of_the_kinds_and_the_names_of_the_others() -> None:
    """What takes seconds of the tables that docs/benchmarks.md begins with."""
    page, quotes = text_of(BENCHMARKS), [one for one in made.load("answers") if one.name == "quote"]
    head, _, quoted, *_ = by_kind(quotes).splitlines()
    assert f"\n{head}\n" in page
    assert f"\n{quoted}\n" in page
    assert [page.count(f"\n| {name}, {length} |") for name, (_, length) in others().items()] == [2] * len(others())


def test_what_the_default_of_the_server_costs() -> None:
    page, prose = text_of(BENCHMARKS), batches.answers()
    worst = run(EditStrategy, made.load("answers"), TABLES["cpu"]).worst
    assert worst >= 0.98
    assert f" | {worst:.3f} | " in page.partition("\n| worst of 60 ")[2].partition("\n")[0]
    clients, costs = (1, 2) if FULL else (1,), device_costs("cpu-16bit")
    speeds = [f"{batches.decode(prose, n, costs, EditStrategy).speed:.3f}" for n in clients]
    assert page.partition("\n| CPU | ")[2].split(" | ")[: len(speeds)] == speeds


A, B = [*range(12)], [*range(50, 62)]
# A rule, a text, and what is drafted behind its end.
RULES: list[tuple[Callable[[], Any], list[int], list[int]]] = [
    # The first of the longest matches of three to five.
    (PUBLISHED["vLLM's n-gram"][0], [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [4, 1, 2, 3, 5, 1, 2, 3]),
    (PUBLISHED["vLLM's n-gram"][0], [2, 3, 4, 5, 2, 3], []),
    # Or one token.
    (PUBLISHED["transformers"][0], [1, 7, 1, 8, 1], [7, 1, 8, 1]),
    # The most recent match of twelve, if twelve more follow it.
    (PUBLISHED["llama.cpp's ngram-simple"][0], [*A, *B, *A], [*B, *A]),
    (PUBLISHED["llama.cpp's ngram-simple"][0], [7] * 40, []),
    (PUBLISHED["llama.cpp's ngram-simple"][0], [*A[1:], *B, *A[1:]], []),
    # As many tokens as match, down the path that most matches took.
    (PUBLISHED["SuffixDecoding"][0], [1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1]),
    (PUBLISHED["SuffixDecoding"][0], [5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2, 4, 8, 1, 2], [4, 7]),
    # 48 tokens or none, each from the 24 before it.
    (lambda: NgramMod({}), [*range(100), *range(24)], [*range(24, 88)]),
    (lambda: NgramMod({}), [*range(60), *range(24)], []),
]


@pytest.mark.parametrize(("make", "text", "drafted"), RULES)
def test_a_published_rule(make: Callable[[], Any], text: list[int], drafted: list[int]) -> None:
    strategy = make()
    getattr(strategy, "begin", strategy.observe)(text[:-24])
    strategy.observe(text[-24:])
    assert list(strategy.propose(64)) == drafted


def test_three_bad_drafts_empty_the_table() -> None:
    strategy = NgramMod({})
    strategy.begin([*range(100), *range(24)])
    for n_right in (20, 40, 20, 20):
        strategy.accept(n_right, 64)
    assert strategy.propose(64)
    strategy.accept(20, 64)
    assert not strategy.propose(64)


def words(text: str) -> list[str]:
    return re.findall(r" ?[A-Za-z]+|\n *| +|\S", text)


def passes(make: Callable[[], Any], answer: str) -> Iterator[tuple[str, ...]]:
    """For each forward pass the drafted text that is accepted, and the word that the model adds. A word is a token."""
    strategy, told = make(), words(answer)
    strategy.begin(words(f"Rename size.\n{answer.replace('total_weight', 'size')}|"))
    while told:
        draft = strategy.propose(63)
        n = next((i for i, word in enumerate(told) if draft[i : i + 1] != [word]), len(told))
        yield tuple("".join(part).replace("\n", r"\n") for part in (told[:n], told[n : n + 1]))
        strategy.observe(told[: n + 1])
        told = told[n + 1 :]


def test_the_example_of_an_edit_is_what_the_strategy_does() -> None:
    shown = re.findall(r"^\| \d+ \| `?(.*?)`? \| `?(.*?)`? \|$", text_of(DRAFTING), re.MULTILINE)
    answer = "".join(chain(*shown)).replace(r"\n", "\n")
    assert [*passes(EditStrategy, answer)] == shown
    assert f"`suffix` takes {len([*passes(SuffixStrategy, answer)])} passes" in text_of(DRAFTING)


@pytest.mark.parametrize("table", TABLES)
def test_no_strategy_is_faster_than_what_knows_the_answer(table: str) -> None:
    streams = [*{one.name: one for one in made.load("answers")}.values()][:: 3 if FULL else 6]
    best = limits(streams, TABLES[table])["knows the answer"]
    for name, make in (makers() | RIVALS).items():
        for kind, result in run(make, streams, TABLES[table]).by_name.items():
            assert result.speed <= best.by_name[kind].speed + 1e-9, name


def gains(streams: list[tuple[Stream, HeadDrafts]]) -> bool:
    """Whether both give more tokens a forward pass than either alone, by 0.1 %, and no stream loses more than 3 %."""
    found = rows(streams, M4)
    means, worst = (
        {name: row.mean("tokens_a_forward") for name, row in found.items()},
        [row.worst for row in found.values()],
    )
    return means["both"] > 1.001 * max(means["edit"], means["head"]) and min(worst) > 0.97


@pytest.mark.parametrize("work", WORK)
def test_a_head_gains_beside_a_lookup(work: str) -> None:
    """On answers and edits that it was not trained on. With the drafts of another place it gains nothing."""
    streams = list(judged(work))
    assert all(len(drafts.tokens) == len(drafts.chances) == one.n_answered for one, drafts in streams)
    assert gains(streams[:: 1 if work == "prose" else 3])
    if work == "prose":
        assert not gains([(one, replace(drafts, tokens=[[], *drafts.tokens[:-1]])) for one, drafts in streams])


@pytest.mark.usefixtures("known_costs")
@pytest.mark.parametrize("name", ["rename", "nothing_to_copy"])
def test_the_head_of_the_fixture(name: str) -> None:
    model, tokenizer = load(str(FIXTURE))
    prompt = mx.array(tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True))
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=60)]
    head, stats = load_head("fixture", model), DraftStats()
    steps = speculative_generate_step(prompt, model, draft_model=head, max_tokens=60, stats=stats)
    assert [token for token, *_ in steps] == plain
    assert stats.accepted > 0
