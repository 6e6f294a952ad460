"""The prompt caches of the series, from the stage on that has them."""

from __future__ import annotations

from mlx_lm.models.cache import can_trim_prompt_cache as can_trim
from mlx_lm.models.cache import restore_prompt_cache as restore
from mlx_lm.models.cache import snapshot_prompt_cache as snapshot
from mlx_lm.models.cache import trim_prompt_cache as trim

__all__ = ["can_trim", "restore", "snapshot", "trim"]


def fits() -> bool:
    return True
