"""What differs between the results of two trees: what broke, was mended, or is offered. It needs no mlx."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from conformance.judging.results import (
    ABSENT,
    BROKEN,
    HOLDS,
    NOT_FINISHED,
    NOT_SHOWN,
    PARTS,
    REFUSED,
    Result,
    Results,
    part_of,
)

# Kinds of differences, in the order in which they are told.
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
    follow: dict[str, int] = field(default_factory=dict)


def kind_of(was: Result, now: Result) -> str | None:
    """What became of a test. A promise of ours that never held is told, and is no fault."""
    if now.outcome == NOT_FINISHED:
        return None if was.outcome == NOT_FINISHED else STOPPED
    if was.outcome == now.outcome:
        return {BROKEN: of_cases, HOLDS: of_plain}[now.outcome](was, now) if now.outcome in (BROKEN, HOLDS) else None
    if now.outcome == BROKEN:
        return BROKE if was.outcome == HOLDS or now.promised else NOT_KEPT
    if was.outcome == BROKEN:
        return MENDED if now.outcome in (HOLDS, REFUSED) else CHANGED if now.outcome == NOT_SHOWN else None
    if now.outcome == HOLDS:
        return OFFERED if was.outcome in (REFUSED, ABSENT) else None
    return GONE if was.outcome == HOLDS else None


def of_cases(was: Result, now: Result) -> str | None:
    """A test that fails on both: do other cases of it fail, or the same ones in another way?"""
    before, after = cases(was), cases(now)
    other = {case: said for case, said in after.items() if before.get(case) != said}
    if not other:
        return MENDED if len(after) < len(before) else None
    gone = before.keys() - after.keys()
    case = min(other, key=lambda case: case in before)
    # The first failure has lines that show it.
    now.said = f"{f'{case}: ' if case else ''}{now.cases.get(case, now.said)}"
    now.lines = now.lines if case == next(iter(after)) else ""
    now.said += f" (on the base: {was.cases[case] if case else was.said})" if case in before else ""
    return CHANGED if gone and case in before else BROKE


def cases(one: Result) -> dict[str, str]:
    """What a test says of each case that fails, without measured numbers."""
    return {case: MEASURED.sub("#", said) for case, said in (one.cases or {"": f"{one.said}\n{one.lines}"}).items()}


def of_plain(was: Result, now: Result) -> str | None:
    """Plain decoding is what it is on the base, bit for bit, and takes as many forward passes."""
    steps, base = (one.notes.get("steps", "").split() for one in (now, was))
    other = [i for i, (a, b) in enumerate(zip(base, steps, strict=False)) if a != b]
    tokens = [i for i in other if base[i].partition(":")[0] != steps[i].partition(":")[0]]
    passes = [int(one.notes.get("forwards", 0)) for one in (was, now)]
    if tokens:
        now.said = f"plain decoding gives another token than the base at step {tokens[0]}"
    elif other:
        now.said = f"the log probabilities of {len(other)} of {len(steps)} steps are other bits than on the base"
    elif passes[1] > passes[0]:
        now.said = f"plain decoding takes {passes[1]} forward passes instead of {passes[0]}"
    else:
        return None
    now.differs = True
    return BROKE


def differences(base: Results, tree: Results) -> list[Group]:
    """What differs, one group for a contract and a kind. What follows from a fault is counted with it."""
    kinds = {test: kind_of(base.get(test, Result(ABSENT)), one) for test, one in tree.items() if one.asked}
    changed = {test: kind for test, kind in kinds.items() if kind is not None}
    mended = {tree[test].about for test, kind in changed.items() if kind == MENDED}
    for test, kind in changed.items():
        # Where a cache is mended, plain decoding with it may be another one, and what was wrong may now be refused.
        mends = tree[test].differs or (kind == GONE and tree[test].outcome == REFUSED)
        if kind in BAD and mends and mended & tree[test].uses:
            changed[test] = CHANGED
    places = places_of(tree)
    roots = {test: root(test, changed, tree, places) for test in changed}
    found: dict[tuple[str, str], Group] = {}
    for test, kind in changed.items():
        if roots[test] == test:
            contract = tree[test].asked
            found.setdefault((kind, contract), Group(kind, contract)).tests.append(test)
    for group in found.values():
        for test, cause in roots.items():
            if cause in group.tests and cause != test:
                contract = tree[test].asked
                group.follow[contract] = group.follow.get(contract, 0) + 1
    return sorted(found.values(), key=lambda group: (KINDS.index(group.kind), places[group.tests[0]]))


# The number of a part, and of a function in it.
Place = tuple[int, int]


def places_of(tree: Results) -> dict[str, Place]:
    """Where the function of each test is. What an earlier one is about may explain a later one."""
    functions: dict[str, int] = {}
    order = list(PARTS)
    return {
        test: (
            order.index(part_of(test) or order[-1]),
            functions.setdefault(test.partition("[")[0], len(functions)),
        )
        for test in tree
    }


def root(test: str, changed: dict[str, str], tree: Results, places: dict[str, Place]) -> str:
    """The first test that changed for the worse too and is about something that this one rests on."""
    if changed[test] not in (*BAD, NOT_KEPT):
        return test
    causes = [
        other
        for other, kind in changed.items()
        if kind in BAD and explains(places[other], tree[other], places[test], tree[test])
    ]
    return min(causes, key=places.__getitem__, default=test)


def explains(at: Place, cause: Result, mine: Place, result: Result) -> bool:
    """Of tests of one function, what a list holds explains the list."""
    earlier = at < mine or (at == mine and cause.about != result.about)
    return earlier and cause.about in result.uses
