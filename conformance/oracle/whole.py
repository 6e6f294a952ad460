"""The option that feeds every draft whole."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

# The core of the series has no gate to disable.
HAS_NO_GATE = find_spec("mlx_lm.draft") is not None and find_spec("mlx_lm.draft.costs") is None
WHOLE: dict[str, Any] = {} if HAS_NO_GATE else {"disable_adaptive_gate": True}
