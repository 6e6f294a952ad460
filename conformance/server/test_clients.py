"""`mlx_lm.server` does what clients of OpenAI's API expect.

Errors have their format, and a hint that cannot be used is no error.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import Any

import openai
import pytest
import requests

from conformance import FIXTURE
from conformance.doors.server.clients import EDIT, GATE_OFF, SHORT, Reference
from conformance.doors.server.process import CHAT, FAST, Server, serve
from conformance.doors.server.traffic import Request, send
from conformance.testing.faults.server import (
    answer_in_words,
    answer_with_all_models,
)

ASK = Request(CHAT, {"messages": EDIT, "max_tokens": 100})


@pytest.fixture
def server(right: Reference) -> Server:
    return right.server


def openai_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)


def check_errors(server: Server, client: openai.OpenAI) -> None:
    """The error says what was wrong, in the client of OpenAI and in the log."""
    for fields, status in (({"temperature": -1}, 400), ({"model": "nowhere/nothing"}, 404)):
        body: dict[str, Any] = {"model": "default_model", "messages": EDIT, "max_tokens": 4, **fields}
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(**body)
        error: Any = refused.value.body
        assert isinstance(error, dict), error
        assert (error["type"], error["code"]) == ("invalid_request_error", status)
        assert error["message"] in server.log
    assert send(server, SHORT).status == 200


def counters(server: Server) -> dict[str, int]:
    """The counters of /metrics, which has the format of Prometheus."""
    page = requests.get(f"{server.url}/metrics", timeout=server.timeout)
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    counter = r"^# HELP mlx_lm_(\w+)_total \S.*\n# TYPE mlx_lm_\1_total counter\nmlx_lm_\1_total (\d+)$"
    found = re.findall(counter, page.text, re.MULTILINE)
    assert 3 * len(found) == len(page.text.splitlines()), page.text
    return {name: int(value) for name, value in found}


def test_what_the_server_counts(right: Reference) -> None:
    with serve(env=FAST) as server:
        answers = [send(server, Request(ASK.path, ASK.body, draft)) for draft in ({}, GATE_OFF, {"draft_type": "x"})]
        # A request is counted after its answer is sent.
        end = time.monotonic() + server.timeout
        while (counted := counters(server))["requests"] < 3 and time.monotonic() < end:
            time.sleep(0.05)
    draft, usages = answers[1].draft, [answer.usage for answer in answers[:2]]
    assert (counted["requests"], counted["errors"]) == (3, 1)
    for name in ("prompt_tokens", "completion_tokens"):
        assert counted[name] == sum(usage[name] for usage in usages)
    assert counted["cached_tokens"] == sum(answer.cached_tokens for answer in answers[:2])
    assert (counted["drafted_tokens"], counted["accepted_tokens"]) == (draft["drafted"], draft["accepted"])
    assert counted["batch_rows"] == counted["batch_steps"] > 0


def check_models(server: Server, client: openai.OpenAI) -> None:
    """Each model of the list can be asked for. The error for another one names it."""
    for model in client.models.list():
        assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="nowhere/nothing"):
        client.models.retrieve("nowhere/nothing")
    assert "nowhere/nothing" in send(server, Request(CHAT, SHORT.body | {"model": "nowhere/nothing"})).error


def check_what_clients_expect(server: Server) -> None:
    client = openai_of(server)
    check_errors(server, client)
    check_models(server, client)


def test_what_clients_expect(server: Server) -> None:
    check_what_clients_expect(server)


@pytest.mark.planted
@pytest.mark.parametrize("broken", [answer_in_words, answer_with_all_models], indirect=True)
def test_what_clients_do_not_expect_is_found(broken: Server) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_what_clients_expect(broken)


def test_the_curl_of_the_document_changes_something(server: Server) -> None:
    document = (FIXTURE.parents[1] / "docs" / "use.md").read_text()
    command = document.split("<!-- curl -->\n")[1].split("<!-- end curl -->")[0]
    _, address, *_, body = shlex.split(command)
    said = server.post(json.loads(body), address.removeprefix("localhost:8080")).json()
    assert said["choices"][0]["message"]["content"].count("count") == 3
    details = said["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["draft"]["forwards"] < said["usage"]["completion_tokens"]
