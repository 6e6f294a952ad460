"""Plant a wrong rollback in this process, for the tests of the verdicts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mlx_lm.draft.loop import Decoder
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from conformance.subjects.families import mutant

OWNERS = {
    owner.__name__: owner for owner in (KVCache, QuantizedKVCache, RotatingKVCache, ArraysCache, BlockVerifier, Decoder)
}
# By the kind of cache, or by the family that alone gets them.
FAULTS: dict[str, list[dict[str, str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def planted(fault: dict[str, str]) -> Any:
    """Patch a method with a copy of it in which a piece of the source is replaced."""
    owner, _, method = fault["within"].partition(".")
    wrong = mutant(getattr(OWNERS[owner], method), fault["right"], fault["wrong"])
    return patch.object(OWNERS[owner], method, wrong)
