"""Mark tests that plant a fault and expect a check to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# What to check, the class or module to patch, the name to replace there, and the fault.
Fault = tuple[str, Any, str, Callable[..., Any]]


def nothing(*_: Any) -> None:
    pass


def planted(*faults: Fault) -> pytest.MarkDecorator:
    """Run a test with each fault. Its argument ``where`` says what to check."""
    ids = ["-".join([where, owner.__name__, name, fault.__name__]) for where, owner, name, fault in faults]
    return pytest.mark.parametrize("where", faults, ids=ids, indirect=True)
