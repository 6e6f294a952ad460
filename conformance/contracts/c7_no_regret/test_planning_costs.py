"""The cost of planning a token: tox run -e micro

The suite runs each test once, without timing. No test asserts a time.
"""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.draft import DraftStats, EditStrategy, Planner, device_costs

from conformance.testing.drafts.backward_scan import VOCAB, text

STREAMS = {"copies": 30_000, "few copies": 300}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("device", ["cpu-16bit", "cpu", "metal", "cuda"])
def test_plan_a_text(benchmark: Any, device: str, stream: str) -> None:
    """Decode 600 known tokens. Divide by that for the time of a token."""
    benchmark.group = f"plan 600 tokens, {stream}"
    tokens = [token % STREAMS[stream] for token in text(3000)]
    prompt, answer = (tokens, tokens[:600]) if stream == "copies" else (tokens[:2400], tokens[2400:])

    def decode() -> int:
        planner = Planner(EditStrategy(), 63, DraftStats(), device_costs(device))
        planner.vocab_size, n = VOCAB, 0
        planner.observe(prompt)
        while n < len(answer):
            ahead = planner.runs_ahead()
            draft = [] if ahead else planner.plan(len(answer) - n)
            n_right = 0
            while draft[n_right : n_right + 1] == answer[n + n_right : n + n_right + 1] != []:
                n_right += 1
            planner.accept(n_right)
            planner.observe(answer[n : n + n_right + 1])
            n += n_right + 1
        return n

    assert benchmark(decode) >= len(answer)
