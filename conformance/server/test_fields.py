"""The fields of requests: a wrong one is refused by its name, and what is told about drafts is true."""

from __future__ import annotations

import inspect
import logging
import re
from itertools import cycle

import mlx_lm.server
import pytest
from mlx_lm.draft import serving

from conformance.doors.server.process import CHAT, TEXT, Body, Inside
from conformance.doors.server.requests import Right, judge, send
from conformance.oracle.findings import broken
from conformance.server.fields import FIELDS, NUMBER, ONLY
from conformance.server.traffic import ASK, GATE_OFF, SHORT

BODIES: dict[str, Body] = {CHAT: SHORT, TEXT: {"prompt": "a", "max_tokens": 4}}


def test_each_field_has_a_row() -> None:
    read = {*serving.OPTIONS, *re.findall(r'\bbody(?:\.get\(\s*|\[)"(\w+)"', inspect.getsource(mlx_lm.server))}
    for field in sorted(read - FIELDS.keys()):
        broken(f"mlx_lm.server reads the field {field} of requests, which has no row in conformance/server/fields.py")


@pytest.mark.contract("C6")
def test_wrong_fields_are_named(server: Inside) -> None:
    """Each is refused by its name, a number also by its value, and a seed draws as before."""
    seeded = {"prompt": "a", "max_tokens": 8, "temperature": 1, "top_k": 50, "top_p": 0.9, "seed": 7}
    text = send(server, seeded).text
    for field, (_, wrong) in FIELDS.items():
        for path, value in zip(cycle([ONLY[field]] if field in ONLY else [CHAT, TEXT]), wrong, strict=False):
            answer = send(server, BODIES[path] | {"draft_type": "auto", field: value})
            number = value["1"] if field == "logit_bias" else value
            named = str(number) if any(number is one for one in NUMBER) else field
            if answer.status != 400 or field not in answer.error or named not in answer.error:
                broken(f"{field} = {str(value)[:60]} is answered with {answer.status} {answer.error!r}")
    assert send(server, seeded).text == text, "the seed 7 draws otherwise afterwards"
    assert server.healthy(), "the server is no longer healthy"


@pytest.mark.contract("C6")
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["batched", "alone"])
def test_what_is_told_about_drafts(server: Inside, right: Right, seed: Body, caplog: pytest.LogCaptureFixture) -> None:
    """Why there are none, and a line in the log for each request that drafts."""
    caplog.set_level(logging.INFO)
    answer = send(server, SHORT | seed | {"draft_type": "auto", "num_draft_tokens": 0})
    assert (answer.draft["drafted"], answer.draft["reason"]) == (0, "num_draft_tokens is 0"), answer
    request = ASK | GATE_OFF | seed
    judge(request, answer := send(server, request), right(request))
    draft, line = answer.draft, r"Drafting for chatcmpl-[0-9a-f-]{36}: (SuffixStrategy.*)"
    rate = answer.usage["completion_tokens"] / draft["forwards"]
    counts = f"{draft['drafted']} tokens drafted, {draft['accepted']} accepted, {rate:.2f} tokens-per-forward"
    assert re.findall(line, caplog.text) == [f"SuffixStrategy, {counts}"]
