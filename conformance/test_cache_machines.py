"""Random programs on every prompt cache of one sequence, against its rows: pytest conformance/test_cache_machines.py

CONFORMANCE_PROFILE=full runs 2000 programs for each cache.
"""

from __future__ import annotations

import pytest

from conformance.machines import KINDS, CacheMachine, run, small_steps

__all__ = ["small_steps"]


@pytest.mark.parametrize("kind", KINDS)
def test_machine(kind: str) -> None:
    run(CacheMachine, kind)
