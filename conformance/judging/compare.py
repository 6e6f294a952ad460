"""What differs between two judged trees: what broke, was mended, is offered now or no longer. It needs no mlx."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

HOLDS, BROKEN, REFUSED, ABSENT, NOT_ASKED = "holds", "broken", "refused", "absent", "not asked"
# Kinds of differences, in the order in which they are told.
BROKE, GONE, MENDED, OFFERED = "broke", "no longer", "mended", "offered"
KINDS = (BROKE, GONE, MENDED, OFFERED)
# The ones that end a run with 1.
BAD = (BROKE, GONE)

Outcomes = dict[str, dict[str, Any]]


@dataclass
class Group:
    """Cases that differ in the same way for one cause."""

    kind: str
    contract: str
    cases: list[str] = field(default_factory=list)
    # Cases that fail with these, by contract.
    follow: list[str] = field(default_factory=list)
    # What fails on the base as well and explains these.
    cause: str = ""
    said: str = ""
    lines: str = ""
    example: str = ""


def kind_of(was: str, now: str) -> str | None:
    """What became of a case."""
    if NOT_ASKED in (was, now):
        return BROKE if now == BROKEN else None
    if now == BROKEN:
        return None if was == BROKEN else BROKE
    if was == BROKEN:
        return MENDED if now in (HOLDS, REFUSED) else None
    if now == HOLDS:
        return None if was == HOLDS else OFFERED
    return GONE if was == HOLDS and now != ABSENT else None


def root_of(case: str, tree: Outcomes, known: Callable[[str], bool]) -> str:
    """The case that explains why one fails: the first that it rests on that fails too, or what explains that one."""
    for other in tree[case]["rests_on"]:
        if known(other):
            return root_of(other, tree, known)
    return case


def differences(base: Outcomes, tree: Outcomes) -> list[Group]:
    """What differs, one group a cause."""
    found: dict[tuple[str, str, str], Group] = {}
    broken = {case for case, outcome in tree.items() if outcome["result"] == BROKEN}
    changed = {
        case: kind
        for case, outcome in tree.items()
        if (kind := kind_of(base.get(case, {}).get("result", ABSENT), outcome["result"]))
    }
    newly = [case for case, kind in changed.items() if kind == BROKE]
    roots = {}
    for case in newly:
        # What broke explains more than what was broken.
        root = root_of(case, tree, set(newly).__contains__)
        roots[case] = root if root != case else root_of(case, tree, broken.__contains__)
    for case, kind in changed.items():
        outcome, root = tree[case], roots.get(case, case)
        if root != case and changed.get(root) == BROKE:
            continue
        cause = root if root != case else ""
        key = (kind, outcome["contract"], cause or message(outcome))
        group = found.setdefault(key, Group(kind, outcome["contract"], cause=cause))
        group.cases.append(case)
    for group in found.values():
        group.follow = [case for case, root in roots.items() if root in group.cases and case != root]
        take_example(group, base if group.kind == MENDED else tree)
    return sorted(found.values(), key=lambda group: (KINDS.index(group.kind), bool(group.cause), group.contract))


def message(outcome: dict[str, Any]) -> str:
    """Whatever raises the same error has one cause; of everything else the contract says it."""
    raised = re.search(r"\b\w+(Error|Exception): .*", outcome["said"])
    return re.sub(r"\d+", "N", raised[0]) if raised and outcome["result"] == BROKEN else ""


def take_example(group: Group, outcomes: Outcomes) -> None:
    """The smallest case of a group."""
    group.example = min(group.cases, key=lambda case: (outcomes[case]["size"], group.cases.index(case)))
    group.said, group.lines = (outcomes[group.example][name] for name in ("said", "lines"))


def red(groups: Iterable[Group]) -> bool:
    return any(group.kind in BAD for group in groups)


def not_asked(base: Outcomes, tree: Outcomes) -> int:
    """How many cases of the base the adapter of the tree has not."""
    return len(base.keys() - tree.keys())
