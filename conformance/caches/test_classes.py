"""No class of a cache is left out."""

from __future__ import annotations

from pathlib import Path

import mlx_lm.models

from conformance.caches.kinds import unknown_classes
from conformance.oracle.findings import broken


def test_every_class_is_in_the_table() -> None:
    if unknown := unknown_classes(Path(mlx_lm.models.__path__[0])):
        broken(f"no test asks {', '.join(unknown)}: add a row to KINDS in conformance/caches/kinds.py")
