"""The server under several clients, drafted and not: a stage that says what is missing until the server drafts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from conformance.bench.cells import Row
from conformance.bench.plan import Plan, Progress

FLAG = "--draft-type"


def drafts() -> bool:
    """Whether the installed server has the flag."""
    command = [sys.executable, "-m", "mlx_lm", "server", "--help"]
    return FLAG in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def measure(plan: Plan, progress: Progress) -> Iterator[Row]:
    """One row a number of clients."""
    reason = "this benchmark does not measure it yet" if drafts() else f"mlx_lm.server of this series has no {FLAG}"
    progress(f"serving: {reason}")
    for clients in plan.clients:
        yield {"clients": clients, "speed": None, "missing": reason}
