"""How much is asked: a sample and few programs, or with CONFORMANCE_PROFILE=full everything and 2000 programs.

Programs are drawn from another seed each day, or from CONFORMANCE_SEED.
"""

from __future__ import annotations

import os
from datetime import date
from typing import Any

from hypothesis import HealthCheck, Phase, core, settings

# All processes of a run inherit it. The option --hypothesis-seed of the plugin sets this name later.
core.global_force_seed = int(os.environ.setdefault("CONFORMANCE_SEED", f"{date.today():%Y%m%d}"))  # type: ignore[assignment]
FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
_COMMON: dict[str, Any] = {
    "stateful_step_count": 25,
    "deadline": None,
    "database": None,
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}
# Shrinking a failing program takes minutes, so only the full profile does it.
_QUICK = settings(max_examples=25, phases=[Phase.generate], **_COMMON)
PROFILE = settings(max_examples=2000, **_COMMON) if FULL else _QUICK


def seed() -> int | None:
    """What programs are drawn from."""
    return core.global_force_seed
