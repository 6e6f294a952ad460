"""`mlx_lm.server` does what clients of OpenAI's API expect."""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal

import openai
import pydantic
import pytest

from conformance.doors.server.process import Body, Inside, inside
from conformance.doors.server.requests import Right, send
from conformance.oracle.findings import broken
from conformance.pages import USE, text_of
from conformance.server.traffic import ASK, CODE, EDITED, GATE_OFF, SHORT
from conformance.subjects.prompts import PROMPTS, chat, fenced


@pytest.fixture
def client(server: Inside) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)


def answered(server: Inside, mark: str) -> Any:
    """What a curl of the document gets."""
    command = text_of(USE).split(f"<!-- {mark} -->\n")[1].split(f"<!-- end {mark} -->")[0]
    _, address, *_, body = shlex.split(command)
    return server.post(json.loads(body), address.removeprefix("localhost:8080")).json()


def test_the_curl_of_the_document_changes_something(server: Inside) -> None:
    said = answered(server, "curl")
    assert said["choices"][0]["message"]["content"].count("count") == 3
    details = said["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["draft"]["forwards"] < said["usage"]["completion_tokens"]


def test_the_curl_of_the_document_calls_a_tool(server: Inside) -> None:
    pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')
    (called,) = answered(server, "curl tool")["choices"][0]["message"]["tool_calls"]
    assert json.dumps(called["function"]) in text_of(USE)


class Lamp(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Literal["lamp", "chair"]
    price: int = pydantic.Field(ge=0, le=999)


# Batched and alone, each without drafts and with them.
WAYS: list[Body] = [{}, GATE_OFF, {"seed": 1}, GATE_OFF | {"seed": 1}]


def test_a_form(client: openai.OpenAI) -> None:
    """The client parses the answer, which drafts do not change."""
    pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')
    asked: Any = {"model": "default_model", "messages": chat("A lamp for 12."), "max_tokens": 60, "temperature": 0}
    said = [client.chat.completions.parse(**asked, response_format=Lamp, extra_body=way).choices[0] for way in WAYS]
    assert all(isinstance(one.message.parsed, Lamp) for one in said), said
    assert {(one.finish_reason, one.message.content) for one in said} == {("stop", said[0].message.content)}


def test_predicted_outputs(client: openai.OpenAI, right: Right) -> None:
    """Clients send the file to edit as a prediction. Most of its tokens come back."""
    fields: Any = ASK | {"model": "default_model", "temperature": 0}
    # With the gate, the number of drafted tokens depends on the times of this machine.
    fields |= {"prediction": {"type": "content", "content": CODE}, "extra_body": {"disable_adaptive_gate": True}}
    answer = client.chat.completions.create(**fields)
    assert answer.choices[0].message.content == right(ASK).text == fenced(EDITED)
    details: Any = answer.usage and answer.usage.completion_tokens_details
    # The name occurs three times in the file.
    assert details.rejected_prediction_tokens == 3, details
    assert details.accepted_prediction_tokens > 27, details


def test_a_prediction_is_drafted_for_no_other_client(server: Inside, right: Right) -> None:
    """Not in a server whose requests share a memory."""
    # Parts of its answer are not in the prompt.
    call: Body = {"messages": PROMPTS["tool"], "max_tokens": 100}
    mod: Body = {"draft_type": "ngram-mod", "ngram_size": 6, "disable_adaptive_gate": True}
    alone = send(server, call | mod).draft["accepted"]
    with inside("--draft-type", "ngram-mod", "--ngram-size", "6", "--disable-adaptive-gate") as sharing:
        send(sharing, SHORT | {"prediction": {"type": "content", "content": right(call).text}})
        if (told := send(sharing, call).draft["accepted"]) != alone:
            broken(f"{told} tokens are accepted and {alone} without a prediction of another client")
