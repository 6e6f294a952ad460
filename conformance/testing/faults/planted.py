"""Planted faults that the checks have to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# What is checked, the class or module whose name is replaced for that, the name, and the fault.
Fault = tuple[str, Any, str, Callable[..., Any]]


def nothing(*_: Any) -> None:
    pass


def planted(*faults: Fault) -> pytest.MarkDecorator:
    """Run a test with each of these: its argument ``where`` says what is to be checked."""
    ids = ["-".join([where, owner.__name__, name, fault.__name__]) for where, owner, name, fault in faults]
    return pytest.mark.parametrize("where", faults, ids=ids, indirect=True)
