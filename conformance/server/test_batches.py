"""Requests that are drafted in one batch get the same answers as each gets alone.

This holds whatever the others draft, accept, cancel or raise.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from mlx_lm.draft import SuffixStrategy
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import llama
from mlx_lm.models.cache import LRUPromptCache

from conformance import FIXTURE
from conformance.doors.server.process import Body, Inside
from conformance.doors.server.requests import Right, judge, judge_all, load, loaded, send, strategy_of
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.recorder import fed
from conformance.server.instruments import beside
from conformance.server.traffic import DRAFTS, FOREVER, GATE_OFF, PENALTIES, ROW, SLOWLY, mixed
from conformance.subjects.prompts import chat, fenced

# The most passes in a step of a batch.
MOST = 4
OPTIONS = ("--prompt-cache-size", "10", "--prefill-step-size", "32")


def test_mixed_requests(server: Inside, right: Right, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is lost, each text is right, no stream stands still, and each way to draft is right."""
    requests, passes, step = mixed(40), list[int](), BatchGenerator.next

    def counted(one: Any) -> Any:
        before = len(blocks)
        responses = step(one)
        passes.append(len(blocks) - before)
        return responses

    monkeypatch.setattr(BatchGenerator, "next", counted)
    with fed(loaded(str(FIXTURE))[0]) as blocks:
        judge_all(requests, answers := load(server, requests), right)
    if max(passes) > MOST:
        broken(f"a stream stood still for {max(passes)} passes, and {MOST} are the most")
    assert server.healthy(), "the server is no longer healthy"
    pairs = list(zip(requests, answers, strict=True))
    shown = {strategy_of(request) for request, answer in pairs if answer.draft.get("accepted")}
    shown |= {field for request, answer in pairs if answer.draft for field in request}
    wanted = {"stop", "tools", "seed", "temperature", *(name for one in PENALTIES for name in one)}
    wanted |= {strategy_of(draft) for draft in DRAFTS if draft}
    if wanted - shown or not any(answer.cached_tokens for answer in answers):
        not_shown(f"no drafted request has {wanted - shown}, or nothing is cached")


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
    # In a small batch most drafts are long enough to be right in part.
    with beside(server, FOREVER | SLOWLY, right):
        judge_all(ROWS, load(server, ROWS, 1), right)


@pytest.mark.parametrize("draft", [{}, GATE_OFF], ids=["plain", "drafted"])
def test_a_seed_gives_its_text_beside_others(server: Inside, right: Right, draft: Body) -> None:
    """A seed gives the text that the library decodes with it, alone and whatever is beside it."""
    body: Body = {"prompt": "def total(rows):\n    ", "max_tokens": 24, "temperature": 1.5, "top_p": 0.9}
    # OpenAI's seeds have a sign, those of MLX have none.
    seeded = [body | draft | {"seed": seed} for seed in (0, 7, 2**63, -1)]
    assert len({right(one).text for one in seeded}) == len(seeded), "the seeds cannot be told apart"
    for one in seeded:
        judge(one, send(server, one), right(one))
    others = [ROW | GATE_OFF, ROW | {"temperature": 1.0}, *mixed(2)]
    together = [one for pair in zip(seeded, others, strict=True) for one in pair]
    judge_all(together, load(server, together), right)


# What can raise in the server: the pass fails all of its batch. c10_rows_are_alone asks it of other parts of a row.
PARTS: dict[str, tuple[Any, str]] = {
    "fetch": (LRUPromptCache, "fetch_nearest_cache"),
    "join": (BatchGenerator, "insert_segments"),
    "store": (LRUPromptCache, "insert_cache"),
    "pass": (llama.Model, "__call__"),
    "strategy": (SuffixStrategy, "propose"),
}


@pytest.mark.parametrize("what", PARTS)
def test_an_error_fails_what_it_belongs_to(
    server: Inside, right: Right, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error fails only the requests that it belongs to, and the next request is served."""
    real, error = getattr(*PARTS[what]), ZeroDivisionError(f"the {what} raises")

    def raise_once(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(*PARTS[what], real)
        raise error

    all_fail = pytest.raises(AssertionError, match=str(error)) if what == "pass" else nullcontext()
    # Only the new row has a strategy that can raise.
    with all_fail, beside(server, FOREVER | ({} if what == "strategy" else SLOWLY), right):
        monkeypatch.setattr(*PARTS[what], raise_once)
        answer = send(server, ROW | GATE_OFF | {"stream": what == "join"})
        # A prompt that cannot be stored or drafted for has its answer. The pass may be one before it came.
        if what in ("store", "strategy") or (what == "pass" and answer.status == 200):
            judge(ROW | GATE_OFF, answer, right(ROW))
        elif answer.status != 500 or str(error) not in answer.error:
            broken(f"the answer is {answer}, and {error}")
    judge(ROW | GATE_OFF, send(server, ROW | GATE_OFF), right(ROW))
