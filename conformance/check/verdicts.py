"""Say of a drafted run whether it is exact, has near ties, or shows a fault: docs/contracts.md has the criterion."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any

import mlx.core as mx

from conformance.oracle.recorder import (
    Block,
    Run,
    best_of,
    gaps,
    log_probabilities,
    next_turn,
    replay,
    state_after,
)

# How many times the noise a right state may be off: docs/contracts.md says why.
TIMES = 4
# So many rows of clean replays are at most as far off as the noise. Routers of experts have ties too.
SHARE = 0.9
# How many rows that are far off are looked at again, and the clean histories that are made up for each.
SUSPECTS, HISTORIES = 12, 4
# Tokens of a restored block that are fed again.
MAX_FED_AGAIN = 16
# A lead from which on two candidates are no tie to a reader, whatever the noise: one is e times as likely.
CLEAR = 1.0
EXACT, NEAR_TIE, FAULT = "exact", "near tie", "fault"
# The bits of a fraction, by type.
FRACTIONS = {mx.bfloat16: 7, mx.float16: 10, mx.float32: 23}


@dataclass
class Divergence:
    """A token that single steps on the same text would not have chosen."""

    position: int
    single: int
    drafted: int
    # How far each is ahead where it was chosen.
    single_lead: float
    drafted_lead: float
    noise: float
    block: int


@dataclass
class Verdict:
    """What is wrong, if anything, and the numbers that say so."""

    kind: str
    # Whether all log probabilities are those of single steps, bit for bit.
    bits: bool
    noise: float
    near_ties: list[Divergence] = field(default_factory=list)
    # The first position that shows a fault (the number of tokens if only the cache that is left does), and how.
    position: int | None = None
    why: str = ""


def step_of(row: mx.array) -> float:
    """The distance of neighbouring numbers of a row's type, at its largest finite value."""
    sizes = mx.abs(row.astype(mx.float32))
    largest = float(mx.where(mx.isfinite(sizes), sizes, 0.0).max().item())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1 - FRACTIONS[row.dtype]) if largest else 0.0


def usual(values: Iterable[float]) -> float:
    """What most of the values that are not zero do not exceed."""
    found = sorted(value for value in values if value)
    return found[int(SHARE * (len(found) - 1))] if found else 0.0


def lead(row: mx.array, a: int, b: int) -> float:
    return float((row[a].astype(mx.float32) - row[b].astype(mx.float32)).item())


# A fault is a position and a sentence.
Faults = Iterator[tuple[int, str]]


class Comparison:
    """A drafted run, and clean replays of its own tokens. Lists have an entry for each row, then the turn that follows.

    Args:
        plain: A plain run; when its tokens are the same, it is the replay in single steps.
        floor: How far the rows of plain runs are from each other.
    """

    def __init__(self, model: Any, run: Run, plain: Run, floor: float) -> None:
        self.model, self.run, self.n, self.noise = model, run, len(run.tokens), floor
        self.single = plain if plain.tokens == run.tokens else self.replay(())
        self.got, self.right = run.all_rows, self.single.all_rows
        # How far the run is from the nearest replay, and the replays in blocks from single steps.
        self.distances, self.apart = gaps(self.got, self.right), [0.0] * len(self.right)
        self.bits = not any(self.distances)
        # The lengths of its blocks, and how many consecutive rows it has of each block.
        self.lengths = sorted({block.length for block in run.owners})
        self.split = [len([*rows]) for _, rows in groupby(run.owners, id)]

    def replay(self, split: Iterable[int]) -> Run:
        return replay(self.model, self.run.prompt, self.run.tokens, split)

    def replay_blocks(self) -> None:
        """Feed what the run fed, in blocks of each length that it used and in those that were left of its own."""
        for split in (*(repeat(length) for length in self.lengths if length > 1), self.split):
            again = self.replay(split).all_rows
            apart = gaps(again, self.right)
            self.noise = max(self.noise, usual(apart))
            self.apart = [max(pair) for pair in zip(self.apart, apart, strict=True)]
            self.distances = [min(pair) for pair in zip(self.distances, gaps(self.got, again), strict=True)]

    def noise_at(self, i: int) -> float:
        """Never less than what the type of the row can tell apart."""
        return max(self.noise, self.apart[i], step_of(self.right[i]))

    def in_noises(self, i: int) -> float:
        """How far a row is from the nearest replay; infinite where there is no noise that could explain it."""
        distance, noise = self.distances[i], self.noise_at(i)
        return distance / noise if noise else math.inf if distance else 0.0

    def of_offsets(self) -> Faults:
        """The caches say that they hold another number of tokens than those of single steps."""
        last: Block | None = None
        for i, block in enumerate(self.run.owners):
            if block is not last and self.start_of(i) is None:
                said = " or ".join(sorted({str(offset) for offset in block.offsets if offset is not None}))
                yield i, f"before the block of this token the caches say that they hold {said} tokens"
                return
            last = block
        held = len(self.run.text)
        if self.run.offsets[held] != self.single.offsets[held]:
            yield self.n, "the caches that are left say that they hold another number of tokens"

    def start_of(self, i: int) -> int | None:
        """The number of tokens that the caches held before the block that begins with row i; None if they deny it.

        Where a cache was restored, right tokens are fed again in front of the next one.
        """
        block, sequence = self.run.owners[i], self.run.text
        fed, held = block.inputs.reshape(-1).tolist(), len(self.run.prompt) - 1 + i
        for start in range(held, held - min(len(fed), MAX_FED_AGAIN), -1):
            right = fed[: held - start + 1] == sequence[start : held + 1]
            if right and block.offsets == self.single.offsets.get(start):
                return start
        return None

    def of_choice(self) -> Faults:
        for i, (token, best) in enumerate(zip(self.run.tokens, best_of(self.run.rows), strict=True)):
            if token != best:
                yield i, f"token {token} was given, and its own log probabilities say {best}"
                return

    def of_rows(self) -> Faults:
        """A row that is far from all clean replays, also from ones that feed the very same block to a clean state."""
        far = [i for i in range(len(self.distances)) if self.in_noises(i) > TIMES]
        for i in sorted(far, key=self.in_noises, reverse=True)[:SUSPECTS]:
            first = next(j for j in far if self.in_noises(j) > TIMES)
            self.look_again(i)
            if self.in_noises(i) > TIMES:
                where = f"at token {i}" if i < self.n else "in the turn that follows"
                off = f"{self.distances[i]:.1e} from every clean replay {where}, noise {self.noise_at(i):.1e}"
                yield min(first, self.n), f"log probabilities are off from here on, {off}"
                return

    def look_again(self, i: int) -> None:
        """Feed the block of a row, what was rejected of it included, after many clean histories."""
        rng, lengths = random.Random(i), [1, *self.lengths]
        histories: list[Iterable[int]] = [*map(repeat, lengths), self.split]
        histories += [[rng.choice(lengths) for _ in self.run.tokens] for _ in range(HISTORIES)]
        for split in histories:
            row = self.after(i, split)
            self.distances[i] = min(self.distances[i], *gaps([self.got[i]], [row]))
            self.apart[i] = max(self.apart[i], *gaps([row], [self.right[i]]))
            if self.in_noises(i) <= TIMES:
                return

    def after(self, i: int, split: Iterable[int]) -> mx.array:
        """What a row would have been after a clean history."""
        model, prompt, text, owners = self.model, self.run.prompt, self.run.text, self.run.owners
        if i >= self.n:
            return next_turn(model, state_after(model, text, len(prompt), split), prompt)[i - self.n]
        start = self.start_of(next(j for j in range(self.n) if owners[j] is owners[i]))
        assert start is not None
        layers = state_after(model, text[:start], len(prompt), split)
        return log_probabilities(model(owners[i].inputs.reshape(1, -1), cache=layers)[0])[i + len(prompt) - start - 1]

    def near_ties(self) -> Iterator[Divergence]:
        rows, right = self.run.rows, self.single.rows
        for i, (token, best) in enumerate(zip(self.run.tokens, best_of(right), strict=True)):
            if token != best:
                leads = (lead(right[i], best, token), lead(rows[i], token, best))
                yield Divergence(i, best, token, *leads, self.noise_at(i), self.run.owners[i].length)


def judge(model: Any, run: Run, plain: Run, floor: float = 0.0) -> Verdict:
    """Compare a drafted run with clean replays of its own tokens."""
    one = Comparison(model, run, plain, floor)
    # No noise explains these.
    found = [*one.of_offsets(), *one.of_choice()]
    if found:
        position, why = min(found)
        return Verdict(FAULT, False, floor, position=position, why=why)
    if not one.bits:
        one.replay_blocks()
        found += one.of_rows()
    verdict = Verdict(EXACT, one.bits, one.noise, list(one.near_ties()))
    for tie in verdict.near_ties:
        if tie.single_lead + tie.drafted_lead > 2 * TIMES * tie.noise:
            said = f"single steps prefer {tie.single} by {tie.single_lead:.2g}, noise {tie.noise:.1e}"
            found.append((tie.position, said))
    if found:
        verdict.kind = FAULT
        verdict.position, verdict.why = min(found)
    elif verdict.near_ties:
        verdict.kind = NEAR_TIE
    return verdict
