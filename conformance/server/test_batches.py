"""Requests that are drafted in one batch get the same answers as each gets alone.

This holds whatever the others draft, accept, cancel or raise. The right answer comes from a separate server that serves
each request alone, without drafts and without a prompt cache.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import openai
import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer
from requests import Timeout

from conformance import FIXTURE
from conformance.doors.server.clients import (
    EDIT,
    ENDLESS,
    GATE_OFF,
    SLOWLY,
    Reader,
    Reference,
    drafted,
    judge_all,
    load,
    mixed,
)
from conformance.doors.server.process import CHAT, FAST, Server, planted, serve
from conformance.doors.server.traffic import CODE, EDITED, EDITS, PENALTIES, Answer, Body, Request, judge, send
from conformance.subjects.prompts import chat, fenced
from conformance.testing.faults.batch import (
    FAILING,
    STOOD_STILL,
    answer_in_bulk,
    count_passes,
    draft_one_by_one,
    fail_together,
    forget_parts_of_stop_words,
    keep_a_rejected_token,
    lose_a_token_of_a_block,
    never_draft_again,
    price_blocks,
    raise_for_some,
    send_what_follows_a_stop_word,
    show_no_accepted_tokens,
    show_no_prompt,
    swap_the_statistics,
)
from conformance.testing.faults.server import drop_the_options

# The most passes, and steps of other prompts, between two responses of the batch to one request.
PASSES, STEPS = 4, 2
OPTIONS = ("--prompt-cache-size", "10", "--prefill-step-size", "32")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(*OPTIONS, env=FAST | planted(count_passes, tmp_path_factory.mktemp("start"))) as server:
        yield server


def check_that_nobody_stands_still(server: Server) -> None:
    found = re.findall(rf"{STOOD_STILL} (\d+) (\d+)", server.log)
    assert found, "nothing was decoded in a batch"
    passes, steps = map(int, found[-1])
    assert passes <= PASSES, f"a stream stood still for {passes} passes"
    assert steps <= STEPS, f"a stream stood still for {steps} steps of prompts"


def test_mixed_requests(server: Server, right: Reference) -> None:
    """No request is lost, and each text is right."""
    requests = mixed(150)
    answers = load(server, requests)
    judge_all(requests, answers, right)
    check_that_penalties_bite(requests, right)
    check_that_nobody_stands_still(server)
    assert server.healthy()
    check_kinds(requests, answers)


def check_that_penalties_bite(requests: Sequence[Request], right: Reference) -> None:
    """Check that penalties change texts. Otherwise they would not test what the processors see."""
    names = {name for penalty in PENALTIES for name in penalty}
    punished = {r.key: r for r in requests if r.body.keys() & names and not r.is_random}
    without = [Request(r.path, {n: v for n, v in r.body.items() if n not in names}) for r in punished.values()]
    bitten = [right(one).text != right(other).text for one, other in zip(punished.values(), without, strict=True)]
    # A text of one token, or an empty one, is often the same.
    assert sum(bitten) > len(bitten) / 2, f"{sum(bitten)} of {len(bitten)} texts are changed by their penalties"


def check_kinds(requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    """Check that the requests cover all kinds."""
    counts = [answer.draft for answer in answers if answer.draft]
    assert sum(draft["accepted"] for draft in counts) > 200
    assert {draft["strategy"] for draft in counts} == {
        "EditStrategy",
        "SuffixStrategy",
        "NgramSimpleStrategy",
        "NgramModStrategy",
    }
    assert any(answer.usage and answer.cached_tokens for answer in answers)
    pairs = list(zip(requests, answers, strict=True))
    kinds: dict[str, Callable[[Request, Answer], object]] = {
        "drafted and stopped": lambda r, a: a.draft and "stop" in r.body and a.finish_reason == "stop",
        "drafted and punished": lambda r, a: a.draft and any(r.body.keys() & penalty for penalty in PENALTIES),
        "drafted and random": lambda r, a: a.draft and r.is_random,
        "seeded": lambda r, a: a.usage and "seed" in r.body,
        "with tools": lambda r, a: a.draft and "tools" in r.body,
        "predicted": lambda r, a: a.draft and "prediction" in r.draft,
        "not drafted": lambda r, a: a.usage and not r.draft,
    }
    found = {kind: sum(bool(is_one(*pair)) for pair in pairs) for kind, is_one in kinds.items()}
    assert min(found.values()) >= 3, found


def check_drafted(server: Server, right: Reference) -> None:
    # Without the gate, so that every request is drafted.
    requests = [r for r in mixed(300) if r.draft.get("disable_adaptive_gate")][:24]
    judge_all(requests, load(server, requests), right)


def check_streams(server: Server, _: Reference) -> None:
    load(server, mixed(20))
    check_that_nobody_stands_still(server)


# A copy that continues until its client leaves.
FOREVER = drafted(Request(CHAT, {"messages": EDIT, **ENDLESS, "max_tokens": 20_000}), SLOWLY)
# Each character takes several tokens.
SIGNS = chat("Repeat this.\n" + fenced("\u2603\U0001f600 = \u6f22\u5b57\u2603"))


def edit(draft: Body, **more: object) -> Request:
    return drafted(Request(CHAT, {"messages": EDIT, "max_tokens": 40, **more}), draft)


def check_company(reader: Reader, right: Reference) -> None:
    """Check the text that a client reads of an endless copy, also from now on. Then the client leaves."""
    # An error may come behind pieces that were sent before and are not read yet.
    enough = len(reader.text) + 200
    while reader.is_alive() and len(reader.text) < enough:
        time.sleep(0.01)
    assert reader.is_alive(), reader.error
    reader.leave()
    assert reader.error is None
    text = right(Request(CHAT, FOREVER.body | {"max_tokens": 300})).text
    assert text[: len(reader.text)] == reader.text[: len(text)]


def stop_words(answer: str) -> list[str]:
    """Stop words from an answer: texts of three tokens that encode to the same tokens again."""
    tokenizer = load_tokenizer(FIXTURE)
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    found = [tokens[i : i + 3] for i in (5, 9, 12, 17, 22)]
    return [
        word for part in found if tokenizer.encode(word := tokenizer.decode(part), add_special_tokens=False) == part
    ]


def rows_of(right: Reference) -> list[Request]:
    """Requests with stop words, penalties and characters in blocks of all lengths."""
    first, second, third, *_ = stop_words(right(edit(SLOWLY)).text)
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


def check_rows(server: Server, right: Reference) -> None:
    """A row does not wait for a long one. Its text and finish reason are as alone, also with a cached prompt, and its
    statistics are its own.
    """
    rows = rows_of(right)
    for n, row in enumerate(rows):
        reader = Reader(server, FOREVER if n else FOREVER.plain)
        judge(row, send(server, row), right(row))
        check_company(reader, right)
    reader = Reader(server, FOREVER)
    for _ in range(2):
        judge_all(rows, load(server, rows, len(rows)), right)
    check_company(reader, right)


def test_each_row_is_as_alone(server: Server, right: Reference) -> None:
    check_rows(server, right)
    # Otherwise a penalty would not show which tokens it sees.
    assert right(edit({}, **PENALTIES[0])).text != right(edit({})).text != right(edit({}, **PENALTIES[1])).text


BURSTS = (1, 2, 4, 8, 1)
COPIES = [
    Request(CHAT, {"messages": messages, "max_tokens": 60}, {"draft_type": "auto"}, "EditStrategy")
    for messages in (
        *(chat(f"{edit}\n{fenced(CODE)}") for edit in EDITS),
        *([{"role": "system", "content": fenced(CODE)}, *chat(edit)] for edit in EDITS),
    )
]


def check_bursts(server: Server, right: Reference) -> None:
    """Each burst of clients gets its texts, and drafting is back afterwards."""
    told = []
    for clients in BURSTS:
        answers = load(server, COPIES[:clients], clients)
        judge_all(COPIES[:clients], answers, right)
        tokens = sum(answer.usage["completion_tokens"] for answer in answers)
        told.append(tokens / sum(answer.draft["forwards"] for answer in answers))
    assert min(told) > 1.2, told
    assert told[-1] >= told[0], f"drafting does not come back: {told}"


@pytest.mark.parametrize("broken", [price_blocks], indirect=True)
def test_drafting_comes_back_after_a_burst(broken: Server, right: Reference) -> None:
    check_bursts(broken, right)


def check_errors(server: Server, right: Reference, what: str = "sampler") -> None:
    """An error fails only the requests that it belongs to, and the next request is served."""
    for streamed in (False, True):
        reader = Reader(server, FOREVER)
        body = edit({}).body | GATE_OFF | FAILING[what]
        if streamed:
            events = server.stream(body).events
            error = str(events[-1].get("error"))
        else:
            answer = send(server, Request(CHAT, body))
            assert answer.status == 500, answer
            error = answer.error
        assert f"the {what} raises" in error
        if what == "pass":
            reader.join(server.timeout)
            assert "the pass raises" in str(reader.error)
        else:
            check_company(reader, right)
        for row in (edit(GATE_OFF), edit({})):
            judge(row, send(server, row), right(row))


@pytest.fixture(scope="module")
def raising(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(*OPTIONS, env=FAST | planted(raise_for_some, tmp_path_factory.mktemp("start"))) as server:
        yield server


@pytest.mark.parametrize("what", FAILING)
def test_an_error_fails_what_it_belongs_to(raising: Server, right: Reference, what: str) -> None:
    check_errors(raising, right, what)


# The prediction, whole and in parts.
PREDICTIONS: list[Any] = [CODE, [{"type": "text", "text": part} for part in (CODE[:40], CODE[40:])]]


def ask(client: openai.OpenAI, draft: Body, content: Any, streamed: bool) -> tuple[str, Any]:
    """Send the file to edit as a prediction. The answer comes at once or as a stream."""
    fields: dict[str, Any] = {"model": "default_model", "messages": EDIT, "max_tokens": 100, "temperature": 0}
    fields |= {"prediction": {"type": "content", "content": content}, "extra_body": draft}
    if not streamed:
        answer = client.chat.completions.create(**fields)
        return answer.choices[0].message.content, answer.usage
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options=options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), last.usage


@pytest.mark.parametrize("clients", [1, 2, 8])
def test_predicted_outputs(server: Server, right: Reference, clients: int) -> None:
    """Clients of OpenAI send the file to edit as a prediction. Most of its tokens come back."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)
    expected = right(Request(CHAT, {"messages": EDIT, "max_tokens": 100}))
    # With the gate, the number of drafted tokens depends on the times of this machine.
    draft: Body = {"disable_adaptive_gate": True} if clients == 1 else {}
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda way: ask(client, draft, *way), [*product(PREDICTIONS, (False, True))] * 2))
    for text, usage in answers:
        assert text == expected.text == fenced(EDITED)
        assert usage.completion_tokens == expected.usage["completion_tokens"]
        details = usage.completion_tokens_details
        # The name occurs three times in the file.
        assert details.rejected_prediction_tokens == 3
        assert details.accepted_prediction_tokens > 0.9 * (details.accepted_prediction_tokens + 3)
        assert details.draft["accepted"] <= details.draft["drafted"]
        assert details.draft["accepted"] > usage.completion_tokens / 2 or not draft


ROWS = (
    send_what_follows_a_stop_word,
    forget_parts_of_stop_words,
    show_no_prompt,
    show_no_accepted_tokens,
    lose_a_token_of_a_block,
    swap_the_statistics,
)
FAULTS: list[tuple[Callable[[], None], Callable[[Server, Reference], None], str]] = [
    (keep_a_rejected_token, check_drafted, ""),
    (drop_the_options, check_drafted, ""),
    (answer_in_bulk, check_streams, "stood still"),
    *((fault, check_rows, "") for fault in ROWS),
    (never_draft_again, check_bursts, ""),
    (fail_together, check_errors, ""),
]


@pytest.mark.planted
@pytest.mark.parametrize(("broken", "check", "said"), FAULTS, indirect=["broken"])
def test_a_fault_is_found(
    broken: Server, check: Callable[[Server, Reference], None], said: str, right: Reference
) -> None:
    with pytest.raises(AssertionError, match=said):
        check(broken, right)


@pytest.mark.planted
@pytest.mark.parametrize("broken", [draft_one_by_one], indirect=True)
def test_a_row_that_waits_for_an_endless_one_is_found(broken: Server, right: Reference) -> None:
    broken.timeout = 20.0
    with pytest.raises((AssertionError, Timeout)):
        check_rows(broken, right)
