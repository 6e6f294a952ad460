"""Requests that are drafted in one batch get the same answers as each gets alone.

This holds whatever the others draft, accept or cancel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

from conformance.doors.server.process import Body, Client, Inside
from conformance.doors.server.requests import Right, judge_all, load, send, strategy_of
from conformance.oracle.findings import broken, not_shown
from conformance.server.traffic import ASK, DRAFTS, FOREVER, GATE_OFF, PENALTIES, ROW, SLOWLY, mixed
from conformance.subjects.prompts import chat, fenced

OPTIONS = ("--prompt-cache-size", "10", "--prefill-step-size", "32")


def test_mixed_requests(server: Inside, right: Right) -> None:
    """No request is lost, each text is right, and each way to draft is right."""
    requests = mixed(40)
    judge_all(requests, answers := load(server, requests), right)
    assert server.healthy(), "the server is no longer healthy"
    pairs = list(zip(requests, answers, strict=True))
    shown = {strategy_of(request) for request, answer in pairs if answer.draft.get("accepted")}
    shown |= {field for request, answer in pairs if answer.draft for field in request}
    wanted = {"stop", "tools", "seed", "temperature", *(name for one in PENALTIES for name in one)}
    wanted |= {strategy_of(draft) for draft in DRAFTS if draft}
    if wanted - shown or not any(answer.cached_tokens for answer in answers):
        not_shown(f"no drafted request has {wanted - shown}, or nothing is cached")


def counters(server: Client) -> dict[str, int]:
    """The counters of /metrics, which has the format of Prometheus."""
    page = server.get("/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    counter = r"^# HELP mlx_lm_(\w+)_total \S.*\n# TYPE mlx_lm_\1_total counter\nmlx_lm_\1_total (\d+)$"
    found = re.findall(counter, page.text, re.MULTILINE)
    assert 3 * len(found) == len(page.text.splitlines()), page.text
    return {name: int(value) for name, value in found}


def test_what_the_server_counts(server: Inside) -> None:
    """A request that is alone in its batch is a row in each step."""
    before = counters(server)
    send(server, ASK)
    now = counters(server)
    steps, rows = (now[name] - before[name] for name in ("batch_steps", "batch_rows"))
    assert rows == steps > 0


# The most steps of a batch that a request may wait for: far less than a long answer takes.
STEPS = 600
# So many of its tokens are compared.
LENGTH = 120


@contextmanager
def beside(server: Client, long: Body, right: Right) -> Iterator[None]:
    """What is asked beside a long answer does not wait for it, and leaves it as it is."""
    before = counters(server)["batch_steps"]
    with closing(server.pieces(long)) as pieces:
        text = next(pieces)
        yield
        if (steps := counters(server)["batch_steps"] - before) > STEPS:
            broken(f"who came waited for {steps} steps of a long answer", json.dumps(long))
        text += "".join(islice(pieces, LENGTH))
    whole = right(long | {"max_tokens": LENGTH}).text
    n = min(len(text), len(whole))
    if text[:n] != whole[:n]:
        broken(f"a long answer is {text[:n]!r} instead of {whole[:n]!r}", json.dumps(long))


# Blocks of all lengths with stop words of several tokens, penalties, and characters that take several tokens.
ROWS: list[Body] = [
    ROW | SLOWLY | PENALTIES[0],
    ROW | GATE_OFF | PENALTIES[1],
    ROW | SLOWLY | {"messages": chat("Repeat this.\n" + fenced("\u2603\U0001f600 = \u6f22\u5b57\u2603"))},
    ROW | GATE_OFF,
    ROW,
    ROW | SLOWLY | {"stop": "\nfor "},
    ROW | GATE_OFF | {"stop": ", value "},
    ROW | SLOWLY | {"stop": "in row"},
]


def test_each_row_is_as_alone(server: Inside, right: Right) -> None:
    """A row does not wait for a long one. Its text and finish reason are as alone, and its statistics are its own."""
    # Otherwise a penalty would not show which tokens it sees.
    assert right(ROWS[0]).text != right(ROW).text != right(ROWS[1]).text
    assert all(right(row).text != right(ROW).text for row in ROWS if "stop" in row)
    with beside(server, FOREVER, right):
        judge_all(ROWS, load(server, ROWS, len(ROWS)), right)
