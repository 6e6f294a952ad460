"""Say of a drafted run whether it is exact, has near ties, or shows a fault: docs/contracts.md has the criterion."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import mlx.core as mx

from conformance.oracle.recorder import (
    Block,
    Recording,
    Task,
    best_of,
    gaps,
    log_probabilities,
    next_turn,
    replay,
    rows_of,
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

    @property
    def clear(self) -> bool:
        return self.single_lead > CLEAR


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


@dataclass
class Clean:
    """Replays of a drafted run's tokens, in single steps and in blocks, and how far apart all of them are.

    The lists have an entry for each token, then one for each row of the turn that follows.
    """

    single: Recording
    # How far the drafted run is from the nearest replay, and the replays in blocks from single steps.
    distances: list[float]
    apart: list[float]
    noise: float = 0.0

    def noise_at(self, i: int) -> float:
        """Never less than what the type of the row can tell apart."""
        return max(self.noise, self.apart[i], step_of(rows_of(self.single)[i]))

    def in_noises(self, i: int) -> float:
        """How far a row is from the nearest replay; infinite where there is no noise that could explain it."""
        distance, noise = self.distances[i], self.noise_at(i)
        return distance / noise if noise else math.inf if distance else 0.0


def step_of(row: mx.array) -> float:
    """The distance of neighbouring numbers of a row's type, at its largest finite value."""
    sizes = mx.abs(row.astype(mx.float32))
    largest = float(mx.where(mx.isfinite(sizes), sizes, 0.0).max().item())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1 - FRACTIONS[row.dtype]) if largest else 0.0


def usual(values: Iterable[float]) -> float:
    """What most of the values that are not zero do not exceed."""
    found = sorted(value for value in values if value)
    return found[int(SHARE * (len(found) - 1))] if found else 0.0


def clean_replays(model: Any, task: Task, run: Recording, single: Recording, floor: float) -> Clean:
    """Feed what the run fed, in blocks of each length that it used and in those that were left of its own."""
    right, got = rows_of(single), rows_of(run)
    clean = Clean(single, gaps(got, right), [0.0] * len(right), floor)
    if not any(clean.distances):
        return clean
    for length in [length for length in run.lengths if length > 1] + [0]:
        again = rows_of(replay(model, task, run.tokens, repeat(length) if length else run.split))
        apart = gaps(again, right)
        clean.noise = max(clean.noise, usual(apart))
        clean.apart = [max(pair) for pair in zip(clean.apart, apart, strict=True)]
        clean.distances = [min(pair) for pair in zip(clean.distances, gaps(got, again), strict=True)]
    return clean


def judge(model: Any, task: Task, run: Recording, plain: Recording, floor: float = 0.0) -> Verdict:
    """Compare a drafted run with clean replays of its own tokens.

    Args:
        plain: A plain run; when its tokens are the same, it is the replay in single steps.
        floor: How far the rows of plain runs are from each other.
    """
    single = plain if plain.tokens == run.tokens else replay(model, task, run.tokens, ())
    found = [*faults_of_offsets(task, run, single), *faults_of_choice(run)]
    if found:
        # No noise explains these.
        position, why = min(found)
        return Verdict(FAULT, False, floor, position=position, why=why)
    clean = clean_replays(model, task, run, single, floor)
    found += faults_of_rows(model, task, run, clean)
    bits = not any(gaps(rows_of(run), rows_of(single)))
    verdict = Verdict(EXACT, bits, clean.noise)
    for i, (token, best) in enumerate(zip(run.tokens, best_of(single.rows), strict=True)):
        if token != best:
            leads = (lead(single.rows[i], best, token), lead(run.rows[i], token, best))
            noise = clean.noise_at(i)
            verdict.near_ties.append(Divergence(i, best, token, *leads, noise, run.owners[i].length))
            if sum(leads) > 2 * TIMES * noise:
                found.append((i, f"single steps prefer {best} by {leads[0]:.2g}, noise {noise:.1e}"))
    if found:
        verdict.kind = FAULT
        verdict.position, verdict.why = min(found)
    elif verdict.near_ties:
        verdict.kind = NEAR_TIE
    return verdict


def lead(row: mx.array, a: int, b: int) -> float:
    return float((row[a].astype(mx.float32) - row[b].astype(mx.float32)).item())


# A fault is a position and a sentence.
Faults = Iterator[tuple[int, str]]


def faults_of_offsets(task: Task, run: Recording, single: Recording) -> Faults:
    """The caches say that they hold another number of tokens than those of single steps."""
    last: Block | None = None
    for i, block in enumerate(run.owners):
        if block is not last and start_of(task, run, i, single) is None:
            said = " or ".join(sorted({str(offset) for offset in block.offsets if offset is not None}))
            yield i, f"before the block of this token the caches say that they hold {said} tokens"
            return
        last = block
    if run.last_offsets != single.last_offsets:
        yield len(run.tokens), "the caches that are left say that they hold another number of tokens"


def start_of(task: Task, run: Recording, i: int, single: Recording) -> int | None:
    """The number of tokens that the caches held before the block that begins with row i; None if they deny it.

    Where a cache was restored, right tokens are fed again in front of the next one.
    """
    block, sequence = run.owners[i], [*task.prompt, *run.tokens]
    fed, held = block.inputs.reshape(-1).tolist(), len(task.prompt) - 1 + i
    for start in range(held, held - min(len(fed), MAX_FED_AGAIN), -1):
        right = fed[: held - start + 1] == sequence[start : held + 1]
        if right and block.offsets == single.offsets.get(start):
            return start
    return None


def faults_of_choice(run: Recording) -> Faults:
    for i, (token, best) in enumerate(zip(run.tokens, best_of(run.rows), strict=True)):
        if token != best:
            yield i, f"token {token} was given, and its own log probabilities say {best}"
            return


def faults_of_rows(model: Any, task: Task, run: Recording, clean: Clean) -> Faults:
    """A row that is far from all clean replays, also from ones that feed the very same block to a clean state."""
    n, far = len(run.tokens), [i for i in range(len(clean.distances)) if clean.in_noises(i) > TIMES]
    for i in sorted(far, key=clean.in_noises, reverse=True)[:SUSPECTS]:
        first = next(j for j in far if clean.in_noises(j) > TIMES)
        look_again(model, task, run, clean, i)
        if clean.in_noises(i) > TIMES:
            where = f"at token {i}" if i < n else "in the turn that follows"
            off = f"{clean.distances[i]:.1e} from every clean replay {where}, noise {clean.noise_at(i):.1e}"
            yield min(first, n), f"log probabilities are off from here on, {off}"
            return


def look_again(model: Any, task: Task, run: Recording, clean: Clean, i: int) -> None:
    """Feed the block of a row, what was rejected of it included, after many clean histories."""
    rng, lengths = random.Random(i), [1, *run.lengths]
    histories: list[Iterable[int]] = [repeat(length) for length in [1, *run.lengths]] + [run.split]
    histories += [[rng.choice(lengths) for _ in run.tokens] for _ in range(HISTORIES)]
    got, right = rows_of(run)[i], rows_of(clean.single)[i]
    for split in histories:
        row = shadow(model, task, run, clean.single, i, split)
        clean.distances[i] = min(clean.distances[i], *gaps([got], [row]))
        clean.apart[i] = max(clean.apart[i], *gaps([row], [right]))
        if clean.in_noises(i) <= TIMES:
            return


def shadow(model: Any, task: Task, run: Recording, single: Recording, i: int, split: Iterable[int]) -> mx.array:
    """What a row would have been after a clean history."""
    n = len(run.tokens)
    if i >= n:
        return next_turn(model, state_after(model, task, run.tokens, split), task.after)[i - n]
    block = run.owners[i]
    first = next(j for j in range(n) if run.owners[j] is block)
    start = start_of(task, run, first, single)
    assert start is not None
    held = start - len(task.prompt)
    layers = state_after(model, task, run.tokens[:held] if held >= 0 else None, split)
    logits = model(block.inputs.reshape(1, -1), cache=layers)[0]
    return log_probabilities(logits)[i - held - 1]
