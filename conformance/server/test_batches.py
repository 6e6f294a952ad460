"""Requests that are drafted in one batch get the same answers as each gets alone.

This holds whatever the others draft, accept, cancel or raise.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from mlx_lm.draft import BlockCosts, batch_planner, options
from mlx_lm.tokenizer_utils import load as load_tokenizer

from conformance import FIXTURE
from conformance.doors.server.process import CHAT, TEXT, Body, Inside, inside
from conformance.doors.server.requests import Request, Right, judge, judge_all, load, send
from conformance.oracle.findings import broken, not_shown
from conformance.server.instruments import PARTS, beside, few_passes, raise_in_the_next
from conformance.server.traffic import (
    CODE,
    DRAFTS,
    EDITS,
    ENDLESS,
    GATE_OFF,
    PENALTIES,
    SLOWLY,
    edit,
    mixed,
)
from conformance.subjects.prompts import chat, fenced

# The most passes in a step of a batch.
MOST = 4
OPTIONS = ("--prompt-cache-size", "10", "--prefill-step-size", "32")
# A device limited by memory bandwidth. With fixed costs, decisions depend only on the tokens.
CHEAP = BlockCosts((1, 2, 64), (1, 1.02, 1.3))


def test_mixed_requests(server: Inside, right: Right) -> None:
    """No request is lost, each text is right, no stream stands still, and each way to draft is right."""
    requests = mixed(100)
    with few_passes(MOST):
        judge_all(requests, answers := load(server, requests), right)
    assert server.healthy(), "the server is no longer healthy"
    pairs = list(zip(requests, answers, strict=True))
    shown = {request.strategy for request, answer in pairs if answer.draft.get("accepted")}
    shown |= {field for request, answer in pairs if answer.draft for field in request.body}
    wanted = {
        *(name for _, name in DRAFTS),
        "stop",
        "tools",
        "seed",
        "temperature",
        *(n for one in PENALTIES for n in one),
    }
    if wanted - shown or not any(answer.cached_tokens for answer in answers):
        not_shown(f"no drafted request has {wanted - shown}, or nothing is cached")


# A copy that continues until its client leaves, far longer than any other answer.
FOREVER = edit(SLOWLY, **ENDLESS | {"max_tokens": 2000})
# Each character takes several tokens.
SIGNS = chat("Repeat this.\n" + fenced("\u2603\U0001f600 = \u6f22\u5b57\u2603"))


def stop_words(answer: str) -> list[str]:
    """Stop words from an answer: texts of three tokens that encode to the same tokens again."""
    tokenizer = load_tokenizer(FIXTURE)
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    found = [tokens[i : i + 3] for i in (5, 9, 12, 17, 22)]
    words = [tokenizer.decode(part) for part in found]
    return [w for w, part in zip(words, found, strict=True) if tokenizer.encode(w, add_special_tokens=False) == part]


def rows_of(right: Right) -> list[Request]:
    """Requests with stop words, penalties and characters in blocks of all lengths."""
    first, second, third, *_ = stop_words(right(edit({})).text)
    return [
        edit(SLOWLY, **PENALTIES[0]),
        edit(GATE_OFF, **PENALTIES[1]),
        Request(CHAT, {"messages": SIGNS, "max_tokens": 40}, SLOWLY, "SuffixStrategy"),
        edit(GATE_OFF),
        edit({}),
        edit(SLOWLY, stop=first),
        edit(GATE_OFF, stop=second),
        edit(SLOWLY, stop=third),
    ]


def test_each_row_is_as_alone(server: Inside, right: Right) -> None:
    """A row does not wait for a long one. Its text and finish reason are as alone, also with a cached prompt, and its
    statistics are its own.
    """
    rows = rows_of(right)
    # Otherwise a penalty would not show which tokens it sees.
    assert right(rows[0]).text != right(edit({})).text != right(rows[1]).text
    for n, row in enumerate(rows):
        with beside(server, FOREVER if n else FOREVER.but(draft={}), right):
            judge(row, send(server, row), right(row))
    with beside(server, FOREVER, right):
        judge_all(rows, load(server, rows, len(rows)), right)


@pytest.mark.parametrize("draft", [{}, GATE_OFF], ids=["plain", "drafted"])
def test_a_seed_gives_its_text_beside_others(server: Inside, right: Right, draft: Body) -> None:
    """A seed gives the text that the library decodes with it, alone and whatever is beside it."""
    body: Body = {"prompt": "def total(rows):\n    ", "max_tokens": 24, "temperature": 1.5, "top_p": 0.9}
    # OpenAI's seeds have a sign, those of MLX have none.
    seeded = [Request(TEXT, body | {"seed": seed}, draft) for seed in (0, 1, 7, 2**31, 2**63, -1)]
    assert len({right(one).text for one in seeded}) == len(seeded), "the seeds cannot be told apart"
    for one in seeded:
        judge(one, send(server, one), right(one))
    others = [edit(GATE_OFF), edit({}, temperature=1.0), *mixed(4)]
    together = [one for pair in zip(seeded, others, strict=True) for one in pair]
    judge_all(together, load(server, together), right)


COPIES = [
    Request(CHAT, {"messages": messages, "max_tokens": 60}, {"draft_type": "auto"}, "EditStrategy")
    for messages in (
        *(chat(f"{edit}\n{fenced(CODE)}") for edit in EDITS),
        *([{"role": "system", "content": fenced(CODE)}, *chat(edit)] for edit in EDITS),
    )
]


def test_drafting_comes_back_after_a_burst(right: Right, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each burst of clients gets its texts, and drafting is back afterwards."""
    for module in (batch_planner, options):
        monkeypatch.setattr(module, "block_costs", lambda _: CHEAP)
    told = []
    with inside(*OPTIONS) as server:
        for clients in (1, 2, 4, 8, 1):
            answers = load(server, COPIES[:clients], clients)
            judge_all(COPIES[:clients], answers, right)
            tokens = sum(answer.usage["completion_tokens"] for answer in answers)
            told.append(tokens / sum(answer.draft["forwards"] for answer in answers))
    assert min(told) > 1.2, f"tokens of a pass, by burst: {told}"
    assert told[-1] >= told[0], f"drafting does not come back: {told} tokens of a pass, by burst"


# Every second is streamed.
@pytest.mark.parametrize(("what", "streamed"), [(what, i % 2 == 1) for i, what in enumerate(PARTS)])
def test_an_error_fails_what_it_belongs_to(
    server: Inside, right: Right, what: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error fails only the requests that it belongs to, and the next request is served."""
    all_fail = pytest.raises(AssertionError, match="the pass raises") if what == "pass" else nullcontext()
    with all_fail, beside(server, FOREVER, right):
        raise_in_the_next(what, monkeypatch)
        answer = send(server, Request(CHAT, edit({}).body | GATE_OFF | PARTS[what], streamed=streamed))
        # A prompt that cannot be stored has its answer.
        if (answer.status, f"the {what} raises" in answer.error) != ((200, False) if what == "store" else (500, True)):
            broken(f"the answer is {answer}, and the {what} raises")
    for row in (edit(GATE_OFF), edit({})):
        judge(row, send(server, row), right(row))
