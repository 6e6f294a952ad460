"""What a test says of a tree beside passed and failed: words that begin the reason of a skip."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest

from conformance import first_line

# The option that feeds every draft whole. The core of the series has no gate to disable.
HAS_NO_GATE = find_spec("mlx_lm.draft") is not None and find_spec("mlx_lm.draft.costs") is None
WHOLE: dict[str, Any] = {} if HAS_NO_GATE else {"disable_adaptive_gate": True}

# What a tree that refuses says, before it does anything.
REFUSAL = (ValueError, NotImplementedError)


def not_offered(what: str) -> NoReturn:
    """The adapters or the tree do not have it, or the suite lacks what it needs to ask for it."""
    pytest.skip(f"not offered: {what}")


def not_shown(why: str) -> NoReturn:
    """The test ran to its end and says nothing about the tree."""
    pytest.skip(f"inconclusive: {why}")


def refused(error: BaseException) -> NoReturn:
    """The tree says that it cannot do it, before it does anything."""
    pytest.skip(f"refused: {first_line(error)}")


def broken(seen: str, lines: str = "", cases: Mapping[str, str] | None = None) -> NoReturn:
    """What is seen and what should be, and the lines that show it.

    Args:
        cases: Of a test that asks many, what it says of each that fails. The judge compares those of two trees.
    """
    error = pytest.fail.Exception(f"{seen}\n\n{lines}" if lines else seen, pytrace=False)
    vars(error)["cases"] = dict(cases or {})
    raise error
