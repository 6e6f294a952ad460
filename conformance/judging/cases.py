"""A case is one thing that a contract says of one cache class, model or command; asking it gives an outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

HOLDS, BROKEN, REFUSED = "holds", "broken", "refused"
# Neither green nor red: the adapter or the tree does not have it; no draft came up, so nothing was shown.
NOT_OFFERED, NOT_SHOWN = "not offered", "not shown"
# Nor is what the suite cannot ask this tree.
NOT_ASKED = "not asked"

# What a tree that refuses says, before it does anything.
REFUSAL = (ValueError, NotImplementedError)
MISSING = re.compile(r"cannot import name|No module named")


class NotOffered(Exception):
    """What the adapter or the tree does not have."""


class NotAsked(Exception):
    """What the suite lacks for this tree."""


class NotShown(Exception):
    """The case ran to its end and could not have failed."""


class Refused(Exception):
    """The tree says that it cannot do it, before it does anything."""


class Broken(AssertionError):
    """What is seen and what should be, and the lines that show it without the suite."""

    def __init__(self, seen: str, lines: str = "") -> None:
        super().__init__(seen)
        self.seen, self.lines = seen, lines


@dataclass(frozen=True)
class Case:
    contract: str
    about: str
    ask: Callable[[], None]
    # The cases without which this one says nothing of its own: contract and what it is about.
    rests_on: tuple[str, ...] = ()
    # Of several cases that fail, the example is the smallest.
    size: int = 0

    @property
    def id(self) -> str:
        return f"{self.contract}: {self.about}"


@dataclass
class Outcome:
    contract: str
    about: str
    result: str
    said: str = ""
    lines: str = ""
    rests_on: list[str] = field(default_factory=list)
    size: int = 0


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def asked(case: Case) -> Outcome:
    """Ask a case. Whatever the tree raises is an outcome."""
    made = Outcome(case.contract, case.about, HOLDS, rests_on=list(case.rests_on), size=case.size)
    try:
        case.ask()
    except NotOffered as error:
        made.result, made.said = NOT_OFFERED, str(error)
    except NotAsked as error:
        made.result, made.said = NOT_ASKED, str(error)
    except NotShown as error:
        made.result, made.said = NOT_SHOWN, str(error)
    except Refused as error:
        made.result, made.said = REFUSED, str(error)
    except Broken as error:
        made.result, made.said, made.lines = BROKEN, error.seen, error.lines
    except ImportError as error:
        made.result, made.said = (NOT_OFFERED if MISSING.search(str(error)) else BROKEN), str(error)
    except Exception as error:
        made.result, made.said = BROKEN, first_line(error)
    return made


def ask(cases: Iterable[Case], say: Callable[[str], None]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for case in cases:
        say(case.id)
        if case.id in found:
            raise LookupError(f"two cases are {case.id}")
        found[case.id] = asked(case)
    return found


def attribute(module: Any, name: str) -> Any:
    """A class or function of the tree."""
    if not hasattr(module, name):
        raise NotOffered(f"the tree has no {name}")
    return getattr(module, name)
