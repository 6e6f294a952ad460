"""What differs between the results of two trees: what broke, was mended, or is offered. It needs no mlx."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from conformance.judging.results import ABSENT, ASKED, BROKEN, HOLDS, REFUSED, Result, Results, function

# Kinds of differences, in the order in which they are told.
BROKE, GONE, NOT_KEPT, MENDED, OFFERED = "broke", "no longer", "not kept", "mended", "offered now"
KINDS = (BROKE, GONE, NOT_KEPT, MENDED, OFFERED)
# The ones that end a run with 1: promises of upstream's, and what held before.
BAD = (BROKE, GONE)
ORDER = list(ASKED)


@dataclass
class Group:
    """Tests of one contract that differ in the same way."""

    kind: str
    contract: str
    tests: list[str] = field(default_factory=list)
    # How many tests fail with these, by contract.
    follow: dict[str, int] = field(default_factory=dict)


def kind_of(was: str, now: str, promised: bool) -> str | None:
    """What became of a test. A promise of ours that never held is told, and is no fault."""
    if now == BROKEN:
        return None if was == BROKEN else BROKE if was == HOLDS or promised else NOT_KEPT
    if was == BROKEN:
        return MENDED if now in (HOLDS, REFUSED) else None
    if now == HOLDS:
        return OFFERED if was in (REFUSED, ABSENT) else None
    return GONE if was == HOLDS and now in (REFUSED, ABSENT) else None


def compared(base: Results, tree: Results) -> None:
    """Plain decoding is what it is on the base, bit for bit, and takes as many forward passes; else it is broken."""
    for test, one in tree.items():
        before = base.get(test)
        if before is None or not before.outcome == one.outcome == HOLDS:
            continue
        was, now = (result.notes.get("steps", "").split() for result in (before, one))
        other = [i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b]
        tokens = [i for i in other if was[i].partition(":")[0] != now[i].partition(":")[0]]
        passes = [int(result.notes.get("forwards", 0)) for result in (before, one)]
        if tokens:
            said = f"plain decoding gives another token than the base at step {tokens[0]}"
        elif other:
            said = f"the log probabilities of {len(other)} of {len(now)} steps are other bits than on the base"
        elif passes[1] > passes[0]:
            said = f"plain decoding takes {passes[1]} forward passes instead of {passes[0]}"
        else:
            continue
        one.outcome, one.said, one.differs = BROKEN, said, True


def differences(base: Results, tree: Results) -> list[Group]:
    """What differs, one group for a contract and a kind. What follows from a fault is counted with it."""
    changed: dict[str, str] = {}
    for test, result in tree.items():
        was = base[test].outcome if test in base else ABSENT
        if function(test) in ASKED and (kind := kind_of(was, result.outcome, ASKED[function(test)][1])):
            changed[test] = kind
    found: dict[tuple[str, str], Group] = {}
    roots = {test: root(test, changed, tree) for test in changed}
    for test, kind in changed.items():
        if roots[test] == test:
            contract = ASKED[function(test)][0]
            found.setdefault((kind, contract), Group(kind, contract)).tests.append(test)
    for group in found.values():
        for test, cause in roots.items():
            if cause in group.tests and cause != test:
                contract = ASKED[function(test)][0]
                group.follow[contract] = group.follow.get(contract, 0) + 1
    return sorted(found.values(), key=lambda group: (KINDS.index(group.kind), place(group.tests[0])))


def place(test: str) -> int:
    return ORDER.index(function(test))


def root(test: str, changed: dict[str, str], tree: Results) -> str:
    """The first test that changed for the worse too and is about something that this one rests on."""
    if changed[test] not in (*BAD, NOT_KEPT):
        return test
    mine = tree[test]
    causes = [
        other
        for other, kind in changed.items()
        if kind in BAD and explains(place(other), tree[other], place(test), mine)
    ]
    return min(causes, key=place, default=test)


def explains(at: int, cause: Result, mine: int, result: Result) -> bool:
    """Of tests of one function, what a list holds explains the list."""
    subject = cause.notes.get("about", "")
    earlier = at < mine or (at == mine and subject != result.notes.get("about", ""))
    return earlier and subject in result.uses


def red(groups: Iterable[Group]) -> bool:
    return any(group.kind in BAD for group in groups)
