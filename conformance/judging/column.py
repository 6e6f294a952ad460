"""A judged tree as a run of the scorecard, so that it can be a column beside the releases. It needs no mlx."""

from __future__ import annotations

from typing import Any

from conformance.scorecard.cells import FAILED, PASSED, SKIPPED

# The row of each contract that is judged.
ROWS = {
    "C1 snapshot": "C1 snapshot",
    "C2 trim": "C2 no silent no-op",
    "C3 exits": "C3 exits",
    "C3 server prefixes": "server",
    "C4 blocks": "C4 parity",
    "C4 parity": "C4 parity",
    "C4 seeds": "C4 parity",
    "C5 processors": "C5 processors",
    "C6 options": "commands",
    "C6 requests": "server",
}


def column(judged: dict[str, Any], release: str) -> dict[str, Any]:
    """What --scorecard of pytest writes, of the cases of a judged tree."""
    rows: dict[str, dict[str, Any]] = {}
    for case, outcome in judged["cases"].items():
        result = {"holds": PASSED, "broken": FAILED}.get(outcome["result"], SKIPPED)
        reason = {} if result == PASSED else {"reason": f"{outcome['result']}: {outcome['said']}"}
        made = {"part": outcome["about"].partition(",")[0], "outcome": result, **reason}
        rows.setdefault(ROWS[outcome["contract"]], {})[f"judged/{case}"] = made
    about = {name: judged[name] for name in ("mlx-lm", "mlx", "device", "python")}
    flavour = f"judged through {judged['adapter']}"
    # All that is judged; rows that are not judged have no tests.
    return {"release": release, "flavour": flavour, **about, "whole": True, "rows": rows}
