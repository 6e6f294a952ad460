"""Drafts are as fast as other ways to look up, and never slow a text down: the loop, on recorded streams.

Nothing is timed: the costs of blocks come from a table. The numbers in docs/drafting.md come from more and longer
streams.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.draft import BlockCosts, LearnedCosts, Proposal, SuffixStrategy, device_costs

from conformance.drafters import Changing, Wrong
from conformance.lab.simulate.rivals import RIVALS
from conformance.lab.simulate.run import CPU, M4, Clock, Make, Result, decode, makers, run
from conformance.lab.streams import NAMES, VOCAB, Request, Stream, load, streams
from conformance.oracle.findings import broken

SEEDS, SMALL = range(100, 101), (300, 1000)
# Answers of about 40 tokens. In few of them a single draft would weigh too much.
MORE_SEEDS = dict.fromkeys(("outline", "quote", "lookup", "tool"), range(100, 112))
SLOWEST = 0.97
# How much slower than the best rival EditStrategy and SuffixStrategy may be, as a share of its speed.
MARGIN = 0.02
# The most that drafts may cost beyond their gain, for any strategy: in passes, and for each token.
CREDIT, CREDIT_PER_TOKEN = 1.0, 0.005
TABLES = {"cpu": CPU, "m4": M4}


@cache
def recorded(*names: str) -> list[Stream]:
    return [s for name in names or NAMES for s in streams(MORE_SEEDS.get(name, SEEDS), SMALL, names=[name])]


@cache
def rival(name: str) -> tuple[float, str]:
    """The speed of the fastest rival on a workload, and its name."""
    others = RIVALS | {"ngram-simple": makers()["ngram-simple"]}
    return max((run(make, recorded(name)).mean("speed"), label) for label, make in others.items())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strategy", ["edit", "suffix"])
def test_no_rival_is_ahead(strategy: str, name: str) -> None:
    speed, (best, other) = run(makers()[strategy], recorded(name)).mean("speed"), rival(name)
    said = f"{name}: {strategy} is {speed:.3f} times as fast as decoding without drafts, {other} {best:.3f}"
    assert speed >= (1 - MARGIN) * best, said


# Beside those of the package: two that are always wrong, and two that a user may write.
OTHERS: dict[str, Make] = {"always wrong": Wrong, "another claim": Changing}
OTHERS |= {name: RIVALS[name] for name in ("recent 3-gram", "transformers")}
ASKED = [(name, costs) for name in (*makers(), *OTHERS) for costs in TABLES if costs == "cpu" or name not in RIVALS]


@pytest.mark.parametrize(("strategy", "costs"), ASKED)
def test_no_stream_is_slower(strategy: str, costs: str) -> None:
    """The credit is more than 3 % of an answer below 50 tokens. The cost never exceeds it."""
    said = []
    for stream in recorded():
        row = run((makers() | OTHERS)[strategy], [stream], TABLES[costs])
        result = row.by_name[stream.name]
        most = (1 + CREDIT_PER_TOKEN) * result.emitted + CREDIT * len(stream.requests)
        if row.worst < SLOWEST or result.spent > most + 1e-6:
            said.append(f"{stream.name}, {result.emitted} tokens: {result.spent:.1f} passes, not {most:.1f} at most")
    if said:
        broken(f"{strategy} slows a text down", "\n".join(said))


@st.composite
def tables(draw: Callable[..., Any]) -> BlockCosts:
    """Cost tables from blocks at the cost of one token to blocks at twice the cost of their tokens."""
    steps = draw(st.lists(st.floats(0, 2), min_size=4, max_size=4))
    lengths = (1, 2, 3, 5, 9)
    costs = [1.0]
    for i, step in enumerate(steps):
        costs.append(costs[-1] + step * (lengths[i + 1] - lengths[i]))
    return BlockCosts(lengths, costs)


Turn = tuple[int, list[float] | None]


class Lying:
    """Random right and wrong drafts, with a random claim about each."""

    def __init__(self, answer: Sequence[int], turns: Sequence[Turn]) -> None:
        self.answer, self.turns, self.n_seen, self.turn = answer, turns, -1, 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.n_seen += len(tokens)

    def propose(self, n_max: int) -> Proposal:
        n_right, claim = self.turns[self.turn % len(self.turns)]
        self.turn += 1
        draft = list(self.answer[self.n_seen : self.n_seen + min(n_right, n_max)])
        return Proposal(draft + [VOCAB - 1] * (n_max - len(draft)), claim)

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


claims = st.one_of(st.none(), st.lists(st.floats(0, 1), min_size=1, max_size=9))
turn = st.tuples(st.integers(0, 16), claims)


@settings(deadline=None)
@given(tables(), st.lists(turn, min_size=1, max_size=12))
def test_no_claim_costs_more_than_the_credit(costs: BlockCosts, turns: list[Turn]) -> None:
    answer = list(range(120))
    result, _ = decode(Lying(answer, turns), Request([0], answer), costs)
    most = (1 + CREDIT_PER_TOKEN) * len(answer) + CREDIT
    assert result.spent <= most + 1e-6, f"120 tokens cost {result.spent:.2f} passes, not {most:.2f} at most"


def test_decoding_runs_ahead_where_nothing_is_drafted() -> None:
    """As plain decoding does. After a draft two passes wait for another one."""
    result, drafts = decode(Wrong(), Request([0], list(range(100))), CPU)
    ahead = len(drafts) - 3 * sum(map(bool, drafts)) - 1
    assert result.ahead >= ahead > 90, f"{result.ahead} of 100 passes begin before their token is known, not {ahead}"


def clock(truth: BlockCosts, seed: str) -> Clock:
    """A clock with passes of about 30 ms. The first pass of each length and a few others take far longer."""
    rng = random.Random(seed)
    seen: set[float] = set()

    def seconds(cost: float) -> float:
        time = 0.03 * cost * (1 + abs(rng.gauss(0, 0.05)))
        if cost not in seen or rng.random() < 0.02:
            time *= rng.uniform(2, 10)
        seen.add(cost)
        return time

    return seconds


def learning(device: str, factor: float) -> list[float]:
    """The speed of the first and the second response with learned costs, relative to known costs.

    Each additional token costs ``factor`` times as much as the table of the device says.
    """
    table, names = device_costs(device), ("rename", "chat", "echo", "json", "code", "prose", "ambiguous")
    truth = BlockCosts(table.lengths, [1 + factor * (cost - 1) for cost in table.costs])
    spent = [Result(), Result(), Result()]
    for stream in recorded(*names):
        request, learned = stream.requests[0], LearnedCosts(table)
        seconds = clock(truth, f"{stream.name} {stream.size} {stream.seed}")
        spent[0] += decode(SuffixStrategy(), request, truth)[0]
        for i in (1, 2):
            spent[i] += decode(SuffixStrategy(), request, truth, learned=learned, clock=seconds)[0]
    return [result.speed / spent[0].speed for result in spent[1:]]


@pytest.mark.parametrize("device", ["cpu-16bit", "metal", "cuda"])
def test_a_first_response_is_as_fast_as_with_known_costs(device: str) -> None:
    found = min(learning(device, 1))
    assert found > 0.98, f"with costs of {device} that are as in its table, it has {found:.3f} of the speed"


@pytest.mark.parametrize("factor", [1 / 3, 3])
@pytest.mark.parametrize("device", ["cpu-16bit", "metal", "cuda"])
def test_costs_are_learned_by_the_second_response(device: str, factor: float) -> None:
    found = learning(device, factor)[1]
    assert found > 0.96, f"with other costs than {device} has, the second response has {found:.3f} of the speed"


def test_a_shared_memory_gains() -> None:
    """On every second answer of a real model."""
    answers = load("answers")[::2]
    shared, alone = (run(makers()[name], answers, M4).mean("speed") for name in ("ngram-mod", "edit"))
    assert shared > 1.02 * alone, f"the speed is {shared:.3f} with a memory that responses share, {alone:.3f} without"


@pytest.mark.parametrize("strategy", makers())
def test_a_second_run_makes_the_same_drafts(strategy: str) -> None:
    for stream in recorded("rename", "prose", "bait")[::3]:
        runs = []
        for _ in range(2):
            make = makers()[strategy]
            runs.append([decode(make(), request, CPU)[1] for request in stream.requests])
        assert runs[0] == runs[1], f"{strategy} drafts otherwise when it reads {stream.name} again"
