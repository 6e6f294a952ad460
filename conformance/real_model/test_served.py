"""A server with SmolLM2: clients at the same time, predictions, and tool calls that go on from a cached prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conformance.doors.server.process import serve
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TABLE, TASKS, rewrite
from conformance.subjects.prompts import Message, chat

pytestmark = pytest.mark.real_model

TOKENS = 24
# Long prompts of 8 clients at once, on a slow machine.
TIMEOUT = 900.0
PREDICTION = {"type": "content", "content": rewrite()[0]["content"].split("```")[1].replace("width", "n_chars")}
TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"city": "string", "unit": "string"},
    },
    {"name": "convert", "description": "Convert a temperature.", "parameters": {"value": "number", "to": "string"}},
]
SYSTEM = f"You can call these tools, with one JSON object a line:\n{json.dumps(TOOLS, indent=1)}"
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}'
Body = dict[str, Any]


def tool_talk() -> list[list[Message]]:
    """The prompts of the conversations A, B, A: the third goes on where the first one ended."""
    first = [{"role": "system", "content": SYSTEM}, *chat("What is the weather in Oslo, in celsius?")]
    result = [{"role": "assistant", "content": CALL}, *chat('{"city": "Oslo", "celsius": 7}\nWrite the call again.')]
    return [first, chat(f"Quote this table.\n{TABLE}"), first + result]


def bodies() -> list[Body]:
    """Eight requests: every task, and two with a prediction."""
    plain: list[Body] = [{"messages": make()} for make in TASKS.values()]
    return [*plain, *({"messages": rewrite(), "prediction": PREDICTION, "seed": seed} for seed in range(2))]


def answers(model: str, requests: Sequence[Body], clients: int, *options: str) -> list[str]:
    """The texts that a new server gives to these requests."""
    with serve(*options, model=path_of(model)) as server, ThreadPoolExecutor(clients) as pool:
        server.timeout = TIMEOUT
        found = [
            {name: value for name, value in body.items() if options or name != "prediction"} | {"max_tokens": TOKENS}
            for body in requests
        ]
        responses = list(pool.map(server.post, found))
    assert [response.status_code for response in responses] == [200] * len(requests)
    return [response.json()["choices"][0]["message"]["content"] for response in responses]


@pytest.mark.parametrize("model", MODELS)
def test_eight_clients(model: str) -> None:
    assert answers(model, bodies(), 8, "--draft-type", "auto") == answers(model, bodies(), 1)


@pytest.mark.parametrize("model", MODELS)
def test_tool_calls_go_on_from_a_cached_prompt(model: str) -> None:
    requests = [{"messages": messages} for messages in tool_talk()]
    assert answers(model, requests, 1, "--draft-type", "auto") == answers(model, requests, 1)
