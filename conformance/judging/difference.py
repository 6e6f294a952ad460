"""What differs between the results of two trees: what broke, was mended, or is offered. It needs no mlx."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from conformance.judging.results import ABSENT, BROKEN, HOLDS, INCONCLUSIVE, NOT_FINISHED, REFUSED, Result, Results

# Kinds of differences, in the order in which they are shown.
BROKE, GONE, NOT_KEPT, STOPPED = "broke", "no longer", "not kept", "not finished"
CHANGED, MENDED, OFFERED = "changed", "mended", "offered now"
KINDS = (BROKE, GONE, NOT_KEPT, STOPPED, CHANGED, MENDED, OFFERED)
# The ones that end a run with 1: promises of upstream's, and what held before.
BAD = (BROKE, GONE)
# A measured number, which is another one in each tree.
MEASURED = re.compile(r"\d+\.\d+(e-?\d+)?|\d+e-?\d+")


@dataclass
class Group:
    """Tests of one contract that differ in the same way."""

    kind: str
    contract: str
    tests: list[str] = field(default_factory=list)
    # How many tests fail with these, by contract.
    follow: Counter[str] = field(default_factory=Counter)


def kind_of(was: Result, now: Result) -> str | None:
    """What became of a test. What only this repository promises and never held is no fault."""
    if now.outcome == NOT_FINISHED:
        return None if was.outcome == NOT_FINISHED else STOPPED
    if was.outcome == NOT_FINISHED and now.outcome == BROKEN:
        now.message += " (on the base it was stopped)"
        return STOPPED
    if was.outcome == now.outcome:
        return {BROKEN: of_cases, HOLDS: of_plain}[now.outcome](was, now) if now.outcome in (BROKEN, HOLDS) else None
    if now.outcome == BROKEN:
        return BROKE if was.outcome == HOLDS or not now.ours else NOT_KEPT
    if was.outcome == BROKEN:
        return MENDED if now.outcome in (HOLDS, REFUSED) else CHANGED if now.outcome == INCONCLUSIVE else None
    if now.outcome == HOLDS:
        return OFFERED if was.outcome in (REFUSED, ABSENT) else None
    return GONE if was.outcome == HOLDS else None


def of_cases(was: Result, now: Result) -> str | None:
    """A test that fails on both: do other cases of it fail, or the same ones in another way?"""
    before, after = cases(was), cases(now)
    other = [case for case, text in after.items() if before.get(case) != text]
    if not other:
        return MENDED if len(after) < len(before) else None
    case = min(other, key=lambda case: case in before)
    # The lines show what the test says itself.
    now.example = now.example if now.cases.get(case, now.message) == now.message else ""
    now.message = f"{f'{case}: ' if case else ''}{now.cases.get(case, now.message)}"
    now.message += f" (on the base: {was.cases[case] if case else was.message})" if case in before else ""
    return CHANGED if before.keys() - after.keys() and case in before else BROKE


def cases(one: Result) -> dict[str, str]:
    """What a test says of each case that fails, without measured numbers."""
    texts = one.cases or {"": f"{one.message}\n{one.example}"}
    return {case: MEASURED.sub("#", text) for case, text in texts.items()}


def of_plain(was: Result, now: Result) -> str | None:
    """Plain decoding is what it is on the base, bit for bit, and takes as many forward passes."""
    base, steps = (one.steps.split() for one in (was, now))
    other = [i for i, (a, b) in enumerate(zip(base, steps, strict=False)) if a != b]
    tokens = [i for i in other if base[i].partition(":")[0] != steps[i].partition(":")[0]]
    before, passes = (int(one.forwards) for one in (was, now))
    if tokens:
        now.message = f"plain decoding gives another token than the base at step {tokens[0]}"
    elif other:
        now.message = f"the log probabilities of {len(other)} of {len(steps)} steps are other bits than on the base"
    elif passes > before:
        now.message = f"plain decoding takes {passes} forward passes instead of {before}"
    else:
        return None
    now.differs = True
    return BROKE


def differences(base: Results, tree: Results) -> list[Group]:
    """What differs, one group for a contract and a kind. What follows from a fault is counted with it."""
    kinds = {test: kind_of(base.get(test, Result(ABSENT)), one) for test, one in tree.items()}
    changed = {test: kind for test, kind in kinds.items() if kind is not None}
    mended = {tree[test].about for test, kind in changed.items() if kind == MENDED}
    for test in changed.keys() - base.keys():
        # A list of the release may cover the tests of a loop that only the tree has.
        tree[test].expected = ""
    for test, kind in changed.items():
        # Where a cache is mended, plain decoding with it may be another one, and what was wrong may now be refused.
        mends = tree[test].differs or (kind == GONE and tree[test].outcome == REFUSED)
        if kind in BAD and mends and mended & tree[test].rests_on:
            changed[test] = CHANGED
    found: dict[tuple[str, str], Group] = {}
    groups: dict[str, Group] = {}
    # What explains a test comes before it, and has its group by then.
    for test, kind in changed.items():
        # A test that ended its process could not say what it asks.
        contract = tree[test].asked or base.get(test, Result(ABSENT)).asked or test
        if (cause := cause_of(test, changed, tree)) is None:
            groups[test] = found.setdefault((kind, contract), Group(kind, contract))
            groups[test].tests.append(test)
        else:
            groups[test] = groups[cause]
            groups[test].follow[contract] += 1
    return sorted(found.values(), key=lambda group: KINDS.index(group.kind))


def cause_of(test: str, changed: dict[str, str], tree: Results) -> str | None:
    """The first test that changed for the worse too and is about something that this one rests on.

    Of tests of one function, what a list holds explains the list.
    """
    if changed[test] not in (*BAD, NOT_KEPT):
        return None
    mine = (test.partition("[")[0], tree[test].about)
    for other, kind in changed.items():
        if other == test:
            return None
        at = (other.partition("[")[0], tree[other].about)
        if kind in BAD and at[1] in tree[test].rests_on and at != mine:
            return other
    return None
