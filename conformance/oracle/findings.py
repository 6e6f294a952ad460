"""What a test says of a tree beside passed and failed: words that begin the reason of a skip."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import pytest

# What a tree that refuses says, before it does anything.
REFUSAL = (ValueError, NotImplementedError)


def not_offered(what: str) -> NoReturn:
    """The adapters or the tree do not have it, or the suite lacks what it needs to ask for it."""
    pytest.skip(f"not offered: {what}")


def not_shown(why: str) -> NoReturn:
    """The test ran to its end and could not have failed."""
    pytest.skip(f"not shown: {why}")


def refused(error: BaseException) -> NoReturn:
    """The tree says that it cannot do it, before it does anything."""
    pytest.skip(f"refused: {first_line(error)}")


def broken(seen: str, lines: str = "") -> NoReturn:
    """What is seen and what should be, and the lines that show it."""
    pytest.fail(f"{seen}\n\n{lines}" if lines else seen, pytrace=False)


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def each(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Ask cases that differ in a length only. What one refuses while another holds is a fault; so is any that fails.

    If none holds, the test is skipped with the first reason.
    """
    held, wrong, skipped = False, list[str](), list[str]()
    for about, ask in cases:
        try:
            ask()
            held = True
        except pytest.skip.Exception as error:
            skipped.append(str(error.msg))
            if not skipped[-1].startswith("not shown"):
                wrong.append(f"{about}: {skipped[-1]}")
        except pytest.fail.Exception as error:
            wrong.append(f"{about}: {error.msg}")
            held = True
    if wrong and held:
        pytest.fail("\n\n".join(wrong), pytrace=False)
    if not held:
        pytest.skip(skipped[0])
