"""Drafts are as fast as other ways to look up, and never slow a text down: the loop, on recorded streams.

Nothing is timed: the costs of blocks come from a table. The numbers in docs/drafting.md come from more and longer
streams.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate, cycle
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.draft import BlockCosts, EditStrategy, LearnedCosts, Proposal, SuffixStrategy, device_costs

from conformance.drafters import Changing, Scripted, Wrong
from conformance.lab.simulate.rivals import RIVALS
from conformance.lab.simulate.run import CPU, LEAST, M4, TABLES, Clock, Make, Result, decode, makers
from conformance.lab.streams import NAMES, VOCAB, Request, Stream, load, streams
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL

# Of longer streams only the full profile asks: on one of 300 tokens a single draft more weighs 3 %.
SEEDS, SIZES = range(100, 101), (300, 1000) if FULL else (300,)
# Answers of about 40 tokens. In few of them a single draft would weigh too much.
MORE_SEEDS = dict.fromkeys(("outline", "quote", "lookup", "tool"), range(100, 112))
SLOWEST = 0.97
# The most that drafts may cost beyond their gain: in passes, and for each token.
CREDIT, CREDIT_PER_TOKEN = 1.0, 0.005
# How much slower than the best rival EditStrategy and SuffixStrategy may be, as a share of its speed.
MARGIN = 0.05
# Each is the fastest on some workload, and on none is another rival faster than all of them.
FASTEST = ("longest, recent", "longest, first", "longest, common, 1x", "transformers, 10", "recent 3-gram")
# Beside those of the package: two that are always wrong, and what users may write.
OTHERS: dict[str, Make] = {name: RIVALS[name] for name in FASTEST} | {"always wrong": Wrong, "another claim": Changing}
ASKED = [("cpu", name) for name in (*makers(), *OTHERS)]
ASKED += [("m4", name) for name in ("edit", "ngram-mod", "always wrong")]


def decoded(make: Make, stream: Stream, costs: BlockCosts) -> Result:
    """Decode a stream. A wrong draft is said before it shows in a speed."""
    total = Result()
    for request in stream.requests:
        strategy, proposed = make(), list[list[int]]()
        strategy.propose = noted(strategy.propose, proposed)
        result, drafts = decode(strategy, request, costs)
        # Beside a memory another strategy drafts too.
        known = None if hasattr(strategy, "lookup") else proposed
        check_drafts(f"{stream.name}, {type(strategy).__name__}: ", drafts, known, request.eos)
        total += result
    return total


def noted(propose: Callable[[int], Any], proposed: list[list[int]]) -> Callable[[int], Any]:
    def noting(n_max: int) -> Any:
        found = propose(n_max)
        proposed.append([*found])
        return found

    return noting


def check_drafts(about: str, drafts: list[list[int]], proposed: list[list[int]] | None, eos: Sequence[int]) -> None:
    """What is fed is what the strategy proposed, up to an end token, and without ids that the model does not have."""
    known = iter(proposed or ())
    for draft in filter(None, drafts):
        if behind := [a for a in draft[:-1] if a in eos]:
            broken(f"{about}a draft goes on behind the end token {behind[0]}: {draft}")
        if max(draft) >= VOCAB:
            broken(f"{about}a draft holds {max(draft)}, and the model has {VOCAB} tokens")
        # What is proposed before a token is known begins with that token.
        n = len(draft)
        if proposed is not None and not any(draft in (one[:n], one[1 : n + 1]) for one in known):
            broken(f"{about}a draft is {draft}, which the strategy did not propose")


@pytest.mark.parametrize("name", NAMES)
def test_no_stream_is_slower_and_no_rival_ahead(name: str) -> None:
    """The credit is more than 3 % of an answer below 50 tokens. The cost never exceeds it."""
    slow, speeds = list[str](), dict[str, float]()
    for costs, strategy in ASKED:
        make, total = (makers() | OTHERS)[strategy], Result()
        for stream in streams(MORE_SEEDS.get(name, SEEDS), SIZES, names=[name]):
            result = decoded(make, stream, TABLES[costs])
            is_slow = stream.n_answered >= LEAST and result.speed < SLOWEST
            most = (1 + CREDIT_PER_TOKEN) * result.emitted + CREDIT * len(stream.requests)
            if is_slow or result.spent > most + 1e-6:
                slow.append(f"{strategy}, {costs}: {result.emitted} tokens cost {result.spent:.1f}, at most {most:.1f}")
            total += result
        speeds.setdefault(strategy, total.speed)
    if slow:
        broken(f"drafts slow {name} down", "\n".join(slow))
    best, rival = max((speeds[one], one) for one in FASTEST)
    for ours in ("suffix", "edit"):
        about = f"{name}: {ours} is {speeds[ours]:.3f} times as fast as decoding without drafts, {rival} {best:.3f}"
        assert speeds[ours] >= (1 - MARGIN) * best, about


# Cost tables from blocks at the cost of one token to blocks at twice the cost of their tokens: what a token more costs.
tables = st.lists(st.floats(0, 2), min_size=8, max_size=8).map(
    lambda steps: BlockCosts(range(1, 10), [*accumulate(steps, initial=1.0)])
)
Turn = tuple[int, list[float] | None]


class Lying(Scripted):
    """Random numbers of right tokens, with a random claim about each."""

    def __init__(self, answer: Sequence[int], turns: Sequence[Turn]) -> None:
        super().__init__([0, *answer], VOCAB)
        self.turns = cycle(turns)

    def propose(self, n_max: int) -> Any:
        self.n_right, claim = next(self.turns)
        return Proposal(super().propose(n_max), claim)

    def wrong(self, draft: Sequence[int], n_max: int) -> Sequence[int]:
        return range(self.n_right, len(draft))


claims = st.one_of(st.none(), st.lists(st.floats(0, 1), min_size=1, max_size=9))
turn = st.tuples(st.integers(0, 16), claims)


@settings(deadline=None)
@given(tables, st.lists(turn, min_size=1, max_size=12), st.booleans())
@example(CPU, [(0, [1.0] * 9)], False)
@example(BlockCosts(range(1, 10), [1.0] + 8 * [3.0]), [(0, [1.0] * 9)], False)
@example(CPU, [(2, [1.0] * 9)], True)
@example(M4, [(0, [0.9] * 9)], True)
@example(BlockCosts(range(1, 10), [1.0] + 8 * [2.9]), [(0, [1.0] * 9)], True)
def test_no_claim_costs_more_than_the_credit(costs: BlockCosts, turns: list[Turn], replays: bool) -> None:
    """Also where a cache drops nothing, and accepted tokens are fed again."""
    answer = list(range(120))
    result, _ = decode(Lying(answer, turns), Request([0], answer), costs, replays=replays)
    # Where a long block costs little more than the shortest one, no draft would begin with less.
    credit = min(max(CREDIT, costs(16) - 1), 2.0) if costs(16) < 2 * costs(2) else CREDIT
    most = (1 + CREDIT_PER_TOKEN) * len(answer) + credit
    assert result.spent <= most + 1e-6, f"120 tokens cost {result.spent:.2f} passes, not {most:.2f} at most"


def test_decoding_runs_ahead_where_nothing_is_drafted() -> None:
    """As plain decoding does, also right after a draft."""
    result, drafts = decode(Wrong(), Request([0], list(range(100))), CPU)
    ahead = len(drafts) - sum(map(bool, drafts)) - 1
    assert result.ahead >= ahead > 90, f"{result.ahead} of 100 passes begin before their token is known, not {ahead}"


def clock(seed: str) -> Clock:
    """A clock with passes of about 30 ms. The first pass of each length and a few others take far longer."""
    rng, seen = random.Random(seed), set[float]()

    def seconds(cost: float) -> float:
        slow = rng.uniform(2, 10) if cost not in seen or rng.random() < 0.02 else 1
        seen.add(cost)
        return 0.03 * cost * (1 + abs(rng.gauss(0, 0.05))) * slow

    return seconds


@pytest.mark.parametrize(("device", "factor"), [("cpu-16bit", 1 / 3), ("metal", 3), ("cuda", 1)])
def test_costs_are_learned_by_the_second_response(device: str, factor: float) -> None:
    """Each additional token costs ``factor`` times as much as the table of the device says."""
    table = device_costs(device)
    truth = BlockCosts(table.lengths, [1 + factor * (cost - 1) for cost in table.costs])
    known, first, second = Result(), Result(), Result()
    for stream in streams(SEEDS, SIZES, names=["rename", "chat", "echo", "json", "code", "prose", "ambiguous"]):
        request, learned = stream.requests[0], LearnedCosts(table)
        how: dict[str, Any] = {"learned": learned, "clock": clock(f"{stream.name} {stream.size} {stream.seed}")}
        known += decode(SuffixStrategy(), request, truth)[0]
        first += decode(SuffixStrategy(), request, truth, **how)[0]
        second += decode(SuffixStrategy(), request, truth, **how)[0]
    for which, response in (("second", second), ("first", first))[: 2 if factor == 1 else 1]:
        share = response.speed / known.speed
        assert share > 0.96, f"with {factor:.2g} times the costs of {device}, the {which} response has {share:.3f}"


def test_drafts_begin_where_each_block_costs_over_two_passes() -> None:
    """As on a GPU that takes as long for two tokens as for sixteen."""
    costs = BlockCosts((1, 2, 16), (1.0, 2.6, 3.0))
    result, _ = decode(EditStrategy(), streams(SEEDS, [300], names=["echo"])[0].requests[0], costs)
    assert result.speed > 5, f"a text that is repeated is {result.speed:.2f} times as fast"


WAIT, SLOWEST_WITH_WAITS = 0.3, 0.94


def test_a_wait_has_to_pay() -> None:
    """A step that may be followed by a draft waits for its token. On a GPU that takes a third of a pass.

    Asked of answers of SmolLM2 of the kinds that copy least.
    """
    for stream in (one for one in load("answers") if one.name in ("answer", "complete") and one.n_answered >= LEAST):
        learned = LearnedCosts(device_costs("cuda"))
        # The first one counts for nothing.
        for _ in range(4):
            learned.learn(1, 1.0, ahead=True)
            learned.learn(1, 1.0 + WAIT)
        result, drafts = decode(EditStrategy(), stream.requests[0], learned)
        waits = sum(not draft for draft in drafts) - result.ahead
        if (speed := result.emitted / (result.spent + WAIT * waits)) < SLOWEST_WITH_WAITS:
            broken(f"{stream.name}, {result.emitted} tokens: {waits} waits, the speed is {speed:.3f}")
