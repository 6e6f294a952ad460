"""`mlx_lm.server` does what clients of OpenAI's API and of Prometheus expect."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from conformance import FIXTURE
from conformance.doors.server.process import Body, Inside, inside
from conformance.doors.server.requests import Right, send
from conformance.oracle.findings import broken
from conformance.server.instruments import counters
from conformance.server.traffic import ASK, CODE, EDITED, GATE_OFF, SHORT
from conformance.subjects.prompts import chat, fenced


def client_of(server: Inside) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)


@pytest.fixture
def client(server: Inside) -> openai.OpenAI:
    return client_of(server)


MARGIN: Body = {"extra_body": {"draft_type": "auto", "draft_margin": 1}}
WRONG: list[tuple[Body, int]] = [
    ({"temperature": -1}, 400),
    ({"model": "nowhere/nothing"}, 404),
    (MARGIN | {"response_format": {"type": "json_object"}}, 400),
]


@pytest.mark.parametrize(("fields", "status"), WRONG)
def test_errors(server: Inside, client: openai.OpenAI, fields: dict[str, Any], status: int) -> None:
    """The error says what was wrong, in the client of OpenAI and in the log."""
    body: Any = {"model": "default_model"} | ASK | fields
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**body)
    error: Any = refused.value.body
    if not isinstance(error, dict) or (error.get("type"), error.get("code")) != ("invalid_request_error", status):
        broken(f"the body of an error is {error!r}")
    assert error["message"] in server.log, f"{error['message']!r} is not in the log"


def test_models(server: Inside, client: openai.OpenAI) -> None:
    """Each model of the list can be asked for. The error for another one names it."""
    for model in client.models.list():
        if (found := client.models.retrieve(model.id)) != model:
            broken(f"asked for the model {model.id}, it answers {found}")
    with pytest.raises(openai.NotFoundError, match="nowhere/nothing"):
        client.models.retrieve("nowhere/nothing")
    assert "nowhere/nothing" in send(server, SHORT | {"model": "nowhere/nothing"}).error


def test_what_the_server_counts() -> None:
    with inside("--draft-type", "none") as server:
        answers = [send(server, ASK | draft) for draft in ({}, GATE_OFF, {"draft_type": "x"})]
        # A request is counted after its answer is sent.
        end = time.monotonic() + server.timeout
        while (counted := counters(server))["requests"] < 3 and time.monotonic() < end:
            time.sleep(0.05)
    draft, usages = answers[1].draft, [answer.usage for answer in answers[:2]]
    wanted = {name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")}
    wanted |= {"requests": 3, "errors": 1, "cached_tokens": sum(answer.cached_tokens for answer in answers[:2])}
    wanted |= {"drafted_tokens": draft["drafted"], "accepted_tokens": draft["accepted"]}
    assert {name: counted[name] for name in wanted} == wanted
    assert counted["batch_rows"] == counted["batch_steps"] > 0


def test_the_curl_of_the_document_changes_something(server: Inside) -> None:
    document = (FIXTURE.parents[1] / "docs" / "use.md").read_text()
    command = document.split("<!-- curl -->\n")[1].split("<!-- end curl -->")[0]
    _, address, *_, body = shlex.split(command)
    said = server.post(json.loads(body), address.removeprefix("localhost:8080")).json()
    assert said["choices"][0]["message"]["content"].count("count") == 3
    details = said["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["draft"]["forwards"] < said["usage"]["completion_tokens"]


class Lamp(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Literal["lamp", "chair"]
    price: int = pydantic.Field(ge=0, le=999)


class Sofa(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    seats: Literal[2, 3]


# Batched and alone, each without drafts and with them.
WAYS: list[Body] = [{}, GATE_OFF, {"seed": 1}, GATE_OFF | {"seed": 1}]


def parsed(server: Inside, **asked: Any) -> list[Any]:
    """What the official client parses of an answer."""
    pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')
    asked |= {"model": "default_model", "messages": chat("A lamp for 12."), "max_tokens": 60, "temperature": 0}
    return [client_of(server).chat.completions.parse(**asked, extra_body=way).choices[0] for way in WAYS]


def test_a_form(server: Inside) -> None:
    """A stop word that is in several tokens of the JSON ends it before."""
    choices = parsed(server, response_format=Lamp)
    whole = choices[0].message.content
    for choice in choices:
        assert (choice.finish_reason, choice.message.content) == ("stop", whole), choice
        assert isinstance(choice.message.parsed, Lamp), choice
    form = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": Lamp.model_json_schema()}}
    body = {"messages": chat("A lamp for 12."), "max_tokens": 60, "response_format": form, "stop": 'ce"'}
    assert 'ce"' in whole
    for way in WAYS:
        assert send(server, body | way).text == whole.partition('ce"')[0]


@pytest.mark.parametrize("named", [None, Lamp, Sofa])
def test_a_required_call(tmp_path: Path, named: type[pydantic.BaseModel] | None) -> None:
    """The one call has the class of its tool."""
    model = shutil.copytree(FIXTURE, tmp_path / "model")
    config = model / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tool_parser_type": "json_tools"}))
    wanted: Any = {"type": "function", "function": {"name": named.__name__}} if named else "required"
    with inside(model=model) as server:
        choices = parsed(server, tools=[openai.pydantic_function_tool(it) for it in (Lamp, Sofa)], tool_choice=wanted)
    calls = [call.function for choice in choices for call in choice.message.tool_calls]
    assert {choice.finish_reason for choice in choices} == {"tool_calls"}, choices
    assert all(isinstance(call.parsed_arguments, named or (Lamp, Sofa)) for call in calls), calls
    assert [(call.name, call.arguments) for call in calls] == [(calls[0].name, calls[0].arguments)] * len(choices)


# The prediction, whole and in parts.
PREDICTIONS: list[Any] = [CODE, [{"type": "text", "text": part} for part in (CODE[:40], CODE[40:])]]


@pytest.mark.parametrize(
    ("content", "streamed"), [*zip(PREDICTIONS, (False, True), strict=True)], ids=["whole", "parts"]
)
def test_predicted_outputs(server: Inside, client: openai.OpenAI, right: Right, content: Any, streamed: bool) -> None:
    """Clients send the file to edit as a prediction. Most of its tokens come back."""
    fields: Any = ASK | {"model": "default_model", "temperature": 0}
    # With the gate, the number of drafted tokens depends on the times of this machine.
    fields |= {"prediction": {"type": "content", "content": content}, "extra_body": {"disable_adaptive_gate": True}}
    if streamed:
        *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        text, usage = "".join(chunk.choices[0].delta.content or "" for chunk in chunks), last.usage
    else:
        answer = client.chat.completions.create(**fields)
        text, usage = answer.choices[0].message.content, answer.usage
    assert text == right(ASK).text == fenced(EDITED)
    details = usage.completion_tokens_details
    # The name occurs three times in the file.
    assert details.rejected_prediction_tokens == 3, details
    assert details.accepted_prediction_tokens > 27, details
    assert usage.completion_tokens / 2 < details.draft["accepted"] <= details.draft["drafted"], details
