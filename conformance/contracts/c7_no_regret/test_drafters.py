"""The speed of the strategies and the Planner on recorded streams.

Nothing is timed: the costs of blocks come from a table. The numbers in docs/drafting.md come from more and longer
streams.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.draft import (
    BlockCosts,
    DraftStats,
    LearnedCosts,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    Planner,
    Proposal,
    SuffixStrategy,
    device_costs,
    planner,
)
from mlx_lm.draft.loop import draft_generate_step
from mlx_lm.draft.planner import CREDIT, CREDIT_PER_TOKEN
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import generation_stream
from mlx_lm.models.cache import KVCache

from conformance.drafters import Changing, Wrong
from conformance.lab.recorded.streams import load
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate.__main__ import CPU, M4, decode, makers, run
from conformance.lab.simulate.baselines import RIVALS, Longest, Ngram
from conformance.lab.simulate.result import Result, Row
from conformance.lab.texts.recorded_streams import NAMES, VOCAB, Request, Stream, streams

SEEDS, SMALL = range(100, 101), (300, 1000)
# Answers of about 40 tokens. In few of them a single draft would weigh too much.
MORE_SEEDS = dict.fromkeys(("outline", "quote", "lookup", "tool"), range(100, 112))
SLOWEST = 0.97
# How much slower than the best rival EditStrategy and SuffixStrategy may be, as a share of its speed.
MARGIN = 0.02
# The most that drafts may cost beyond their gain, for any strategy.
REGRET = CREDIT
ADVERSARIES = ("ambiguous", "bait")
TABLES = {"cpu": CPU, "m4": M4}


@cache
def recorded(*names: str) -> list[Stream]:
    return [s for name in names or NAMES for s in streams(MORE_SEEDS.get(name, SEEDS), SMALL, names=[name])]


@cache
def rivals() -> dict[str, dict[str, float]]:
    """The speed of each rival on each workload."""
    others = RIVALS | {"ngram-simple": makers()["ngram-simple"]}
    rows = {label: run(make, recorded()) for label, make in others.items()}
    return {name: {label: row.by_name[name].speed for label, row in rows.items()} for name in NAMES}


def behind(row: Row) -> list[str]:
    """The workloads on which a rival is faster by more than the allowed share."""
    found = []
    for name, result in row.by_name.items():
        speed, rival = max((speed, rival) for rival, speed in rivals()[name].items())
        if result.speed < (1 - MARGIN) * speed:
            found.append(f"{name}: {result.speed:.3f}, {rival} {speed:.3f}")
    return found


@pytest.mark.parametrize("strategy", ["edit", "suffix"])
def test_no_rival_is_ahead(strategy: str) -> None:
    assert behind(run(makers()[strategy], recorded())) == []


@pytest.mark.planted
@pytest.mark.parametrize(
    "fault",
    [lambda: Longest("first", least=3, factor=1), lambda: Ngram(3, first=True), NgramSimpleStrategy],
    ids=["cautious", "first", "short"],
)
def test_a_worse_strategy_is_found(fault: Callable[[], Any]) -> None:
    assert len(behind(run(fault, recorded()))) > 1


def regrets(make: Callable[[], Any], costs: BlockCosts, streams: Sequence[Stream]) -> list[str]:
    """The streams that drafting slows down by more than the allowed share."""
    found = []
    for stream in streams:
        row = run(make, [stream], costs)
        result = row.by_name[stream.name]
        most = (1 + CREDIT_PER_TOKEN) * result.emitted + REGRET * len(stream.requests)
        if row.worst < SLOWEST or result.spent > most:
            found.append(f"{stream.name} {stream.size} {stream.seed}: {result.speed:.3f}")
    return found


# Beside those of the package: one that is always wrong, and two that a user may write.
OTHERS = {"always wrong": Wrong} | {name: RIVALS[name] for name in ("recent 3-gram", "transformers")}
ASKED = [(name, costs) for name in (*makers(), *OTHERS) for costs in TABLES if costs == "cpu" or name not in RIVALS]


@pytest.mark.parametrize(("strategy", "costs"), ASKED)
def test_no_stream_is_slower(strategy: str, costs: str) -> None:
    """The credit is more than 3 % of an answer below 50 tokens. The cost never exceeds it."""
    assert regrets((makers() | OTHERS)[strategy], TABLES[costs], recorded()) == []


@pytest.mark.planted
def test_drafts_without_a_gate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gate, a bad-case stream or prose is slower."""
    monkeypatch.setattr(simulate, "Planner", lambda *args: Planner(args[0], args[1], args[2], None, args[4]))
    for make in (SuffixStrategy, NgramSimpleStrategy, RIVALS["transformers"]):
        assert regrets(make, CPU, recorded(*ADVERSARIES, "prose")) != []


@pytest.mark.planted
def test_a_gate_without_its_credit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [i % 50 for i in range(300)]
    stream = Stream("always wrong", 1, 0, (Request([0], answer),))
    assert regrets(Changing, CPU, [stream]) == []
    monkeypatch.setattr(planner, "CREDIT", 1e9)
    assert regrets(Changing, CPU, [stream]) != []


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
    assert result.spent <= (1 + CREDIT_PER_TOKEN) * len(answer) + REGRET + 1e-6


def clock(truth: BlockCosts, seed: str) -> Callable[[float], float]:
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


def scaled(table: BlockCosts, factor: float) -> BlockCosts:
    """A table in which each additional token costs ``factor`` times as much."""
    return BlockCosts(table.lengths, [1 + factor * (cost - 1) for cost in table.costs])


def learning(device: str, factor: float) -> list[float]:
    """The speed of the first and the second response with learned costs, relative to known costs."""
    table, names = device_costs(device), ("rename", "chat", "echo", "json", "code", "prose", "ambiguous")
    truth, spent = scaled(table, factor), [Result(), Result(), Result()]
    for stream in recorded(*names):
        request, learned = stream.requests[0], LearnedCosts(table)
        seconds = clock(truth, f"{stream.name} {stream.size} {stream.seed}")
        spent[0] += decode(SuffixStrategy(), request, truth)[0]
        for i in (1, 2):
            spent[i] += decode(SuffixStrategy(), request, truth, learned=learned, clock=seconds)[0]
    return [result.speed / spent[0].speed for result in spent[1:]]


@pytest.mark.parametrize("device", ["cpu-16bit", "metal", "cuda"])
def test_a_first_response_is_as_fast_as_with_known_costs(device: str) -> None:
    assert min(learning(device, 1)) > 0.98


@pytest.mark.parametrize("factor", [1 / 3, 3])
@pytest.mark.parametrize("device", ["cpu-16bit", "metal", "cuda"])
def test_costs_are_learned_by_the_second_response(device: str, factor: float) -> None:
    assert learning(device, factor)[1] > 0.96


@pytest.mark.planted
def test_costs_that_are_never_learned_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnedCosts, "learn", lambda *_: None)
    assert learning("metal", 3)[1] < 0.9


def memory_gain() -> float:
    """The speed with a memory that requests share over the one without, on every second answer of a real model."""
    answers = load("answers")[::2]
    with_memory, without = (run(makers()[name], answers, M4).mean("speed") for name in ("ngram-mod", "edit"))
    return with_memory / without


def test_a_shared_memory_gains() -> None:
    assert memory_gain() > 1.02


@pytest.mark.planted
def test_a_memory_that_is_never_asked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramModStrategy, "propose", lambda *_: [])
    assert memory_gain() < 1.02


@pytest.mark.parametrize("strategy", makers())
def test_a_second_run_makes_the_same_drafts(strategy: str) -> None:
    names = ("rename", "prose", "bait")
    runs = []
    for _ in range(2):
        make = makers()[strategy]
        runs.append([decode(make(), r, CPU)[1] for s in recorded(*names)[::3] for r in s.requests])
    assert runs[0] == runs[1]


@pytest.mark.planted
def test_drafts_that_depend_on_more_than_the_tokens_are_found() -> None:
    """A planted fault: an ngram-mod table is shared between two runs."""
    table = NgramModTable(vocab_size=VOCAB)
    request = recorded("rename")[0].requests[0]
    runs = [decode(NgramModStrategy(table), request, CPU)[1] for _ in range(2)]
    assert runs[0] != runs[1]


class Known:
    """A model that always continues with given tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = mx.array(tokens)
        self.blocks: list[int] = []

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        n = inputs.shape[1]
        self.blocks.append(n)
        start = cache[0].offset + 1
        rows = mx.zeros((1, 1, n, 1))
        cache[0].update_and_fetch(rows, rows)
        return mx.eye(int(self.tokens.max()) + 2)[self.tokens[start : start + n]][None]


def loop_blocks(strategy: Any, request: Request, costs: BlockCosts) -> list[int]:
    """The lengths of the blocks that the loop feeds after the prompt."""
    model = Known([*request.prompt, *request.answer, 0])
    steps = draft_generate_step(
        mx.array(request.prompt),
        BlockVerifier(model, [KVCache()]),
        Planner(strategy, 15, DraftStats(), costs, request.eos),
        generation_stream,
        max_tokens=len(request.answer) - 1,
    )
    assert [token for token, _, _ in steps] == request.answer[:-1]
    return model.blocks[1:]


@pytest.fixture(scope="module")
def loop_requests() -> list[Request]:
    return [s.requests[-1] for s in streams([100], [300], names=("replace", "json", "code", *ADVERSARIES))]


@pytest.mark.parametrize("strategy", makers())
def test_the_simulation_is_what_the_loop_does(strategy: str, loop_requests: list[Request]) -> None:
    mine, theirs = makers()[strategy], makers()[strategy]
    for request in loop_requests:
        drafts = decode(mine(), request, CPU)[1]
        assert [1 + len(draft) for draft in drafts] == loop_blocks(theirs(), request, CPU)


@pytest.mark.planted
def test_another_loop_is_found(monkeypatch: pytest.MonkeyPatch, loop_requests: list[Request]) -> None:
    """A planted fault: the loop never feeds ahead."""
    drafts = [decode(makers()["suffix"](), request, CPU)[1] for request in loop_requests]
    monkeypatch.setattr(Planner, "runs_ahead", lambda _: False)
    blocks = [loop_blocks(makers()["suffix"](), request, CPU) for request in loop_requests]
    assert [[1 + len(draft) for draft in one] for one in drafts] != blocks
