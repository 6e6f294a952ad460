"""How much is asked: a sample and few programs, or with CONFORMANCE_PROFILE=full everything and 2000 programs."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
_COMMON: dict[str, Any] = {
    "stateful_step_count": 25,
    "deadline": None,
    "database": None,
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}
# Shrinking a failing program takes minutes, so only the full profile does it.
_QUICK = settings(max_examples=25, derandomize=True, phases=[Phase.generate], **_COMMON)
PROFILE = settings(max_examples=2000, **_COMMON) if FULL else _QUICK
