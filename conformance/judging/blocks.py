"""How many tokens the fixture's model is fed at a time, noted in the process of a command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from conformance.doors.server.process import FAST, planted

VARIABLE = "CONFORMANCE_BLOCKS"
# A block that verifies a draft; a chunk of a prompt is longer here, and a step is one token.
DRAFTED = range(2, 20)


def note() -> None:
    """Called when the process starts."""
    from mlx_lm.models import llama

    call = llama.Model.__call__

    def noted(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with open(os.environ[VARIABLE], "a") as file:
            file.write(f"{inputs.shape[-1]}\n")
        return call(self, inputs, *args, **kwargs)

    llama.Model.__call__ = noted


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that notes its blocks in a file of the folder."""
    compiled = FAST if sys.platform == "linux" else {}
    return {**planted(note, folder), VARIABLE: str(folder / "blocks"), "HF_HUB_OFFLINE": "1", **compiled}


def drafted(folder: Path) -> int:
    """How many blocks were fed that may have held a draft."""
    file = folder / "blocks"
    return sum(int(line) in DRAFTED for line in file.read_text().split()) if file.exists() else 0
