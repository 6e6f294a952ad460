"""A step that may be followed by a draft waits for its token. On a GPU that takes a third of a pass."""

from __future__ import annotations

from mlx_lm.draft import EditStrategy, LearnedCosts, device_costs

from conformance.lab.simulate.run import LEAST, decode
from conformance.lab.streams import load
from conformance.oracle.findings import broken

WAIT, SLOWEST = 0.3, 0.94


def costs() -> LearnedCosts:
    """Those of a device on which a wait was seen to cost so much."""
    learned = LearnedCosts(device_costs("cuda"))
    # The first one counts for nothing.
    for _ in range(4):
        learned.learn(1, 1.0, ahead=True)
        learned.learn(1, 1.0 + WAIT)
    return learned


def test_a_wait_has_to_pay() -> None:
    """Answers of SmolLM2 of the kinds that copy least."""
    for stream in (one for one in load("answers") if one.name in ("answer", "complete") and one.n_answered >= LEAST):
        result, drafts = decode(EditStrategy(), stream.requests[0], costs())
        waits = sum(not draft for draft in drafts) - result.ahead
        speed = result.emitted / (result.spent + WAIT * waits)
        if speed < SLOWEST:
            broken(f"{stream.name}, {result.emitted} tokens: {waits} waits, the speed is {speed:.3f}")
