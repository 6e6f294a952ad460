"""Requests that are drafted in one batch get the same answers as each gets alone.

This holds whatever the others draft, accept, cancel or raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from typing import Any

import openai
import pytest
from mlx_lm.draft import BlockCosts, batch_planner, options
from mlx_lm.tokenizer_utils import load as load_tokenizer

from conformance import FIXTURE
from conformance.doors.server.process import CHAT, TEXT, Body, Inside, inside
from conformance.doors.server.requests import Answer, Request, Right, judge, judge_all, load, send
from conformance.oracle.findings import broken, not_shown
from conformance.server.instruments import PARTS, Stillness, beside, raise_in_the_next
from conformance.server.traffic import (
    ASK,
    CODE,
    DRAFTS,
    EDIT,
    EDITED,
    EDITS,
    ENDLESS,
    GATE_OFF,
    PENALTIES,
    SLOWLY,
    drafted,
    edit,
    mixed,
)
from conformance.subjects.prompts import chat, fenced

# The most passes, and steps of other prompts, between two responses of the batch to one request.
STILL = 4, 2
OPTIONS = ("--prompt-cache-size", "10", "--prefill-step-size", "32")
# A device limited by memory bandwidth. With fixed costs, decisions depend only on the tokens.
CHEAP = BlockCosts((1, 2, 64), (1, 1.02, 1.3))


@pytest.mark.parametrize("n", [24, 150])
def test_mixed_requests(server: Inside, right: Right, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is lost, each text is right, and no stream stands still. A few are all drafted, without the gate."""
    requests = mixed(n) if n == 150 else [one for one in mixed(300) if one.draft.get("disable_adaptive_gate")][:n]
    still = Stillness(monkeypatch)
    answers = load(server, requests)
    judge_all(requests, answers, right)
    still.check(STILL)
    assert server.healthy(), "the server is no longer healthy"
    if n == 150:
        check_kinds(requests, answers)


def check_kinds(requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    """Check that the requests cover all kinds, and that each way to draft is right often."""
    pairs = list(zip(requests, answers, strict=True))
    kinds: dict[str, list[object]] = {
        "stopped": [a.draft and "stop" in r.body and a.finish_reason == "stop" for r, a in pairs],
        "punished": [a.draft and any(r.body.keys() & penalty for penalty in PENALTIES) for r, a in pairs],
        "random": [a.draft and r.is_random for r, a in pairs],
        "with tools": [a.draft and "tools" in r.body for r, a in pairs],
        "seeded": ["seed" in r.body for r, _ in pairs],
        "cached": [a.cached_tokens for _, a in pairs],
        "not drafted": [not r.draft for r, _ in pairs],
        **{name: [a.draft.get("accepted") and r.strategy == name for r, a in pairs] for _, name in DRAFTS},
    }
    for kind, found in kinds.items():
        if (n := sum(map(bool, found))) < 3:
            not_shown(f"{n} requests are {kind}")


# A copy that continues until its client leaves, far longer than any other answer.
FOREVER = drafted(Request(CHAT, {"messages": EDIT, **ENDLESS, "max_tokens": 2000}), SLOWLY)
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
        for _ in range(2):
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


# The prediction, whole and in parts.
PREDICTIONS: list[Any] = [CODE, [{"type": "text", "text": part} for part in (CODE[:40], CODE[40:])]]


def ask(client: openai.OpenAI, draft: Body, content: Any, streamed: bool) -> tuple[str, Any]:
    """Send the file to edit as a prediction. The answer comes at once or as a stream."""
    fields: Body = {"model": "default_model", **ASK.body, "temperature": 0}
    fields |= {"prediction": {"type": "content", "content": content}, "extra_body": draft}
    if not streamed:
        answer = client.chat.completions.create(**fields)
        return answer.choices[0].message.content, answer.usage
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options=options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), last.usage


@pytest.mark.parametrize("clients", [1, 2, 8])
def test_predicted_outputs(server: Inside, right: Right, clients: int) -> None:
    """Clients of OpenAI send the file to edit as a prediction. Most of its tokens come back."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)
    expected = right(ASK)
    # With the gate, the number of drafted tokens depends on the times of this machine.
    draft: Body = {"disable_adaptive_gate": True} if clients == 1 else {}
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda way: ask(client, draft, *way), [*product(PREDICTIONS, (False, True))] * 2))
    for text, usage in answers:
        assert text == expected.text == fenced(EDITED)
        assert usage.completion_tokens == expected.usage["completion_tokens"]
        details = usage.completion_tokens_details
        # The name occurs three times in the file.
        assert details.rejected_prediction_tokens == 3, details
        assert details.accepted_prediction_tokens > 0.9 * (details.accepted_prediction_tokens + 3), details
        assert details.draft["accepted"] <= details.draft["drafted"], details
        assert details.draft["accepted"] > usage.completion_tokens / 2 or not draft, details
