"""A server with SmolLM2: clients at the same time, predictions, and tool calls that go on from a cached prompt."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conformance.doors.server.process import serve
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TABLE, TASKS, rewrite
from conformance.subjects.prompts import chat

pytestmark = pytest.mark.real_model

Body = dict[str, Any]
TOOL = {"name": "get_weather", "parameters": {"city": "string", "unit": "string"}}
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}'
RESULT = '{"city": "Oslo", "celsius": 7}\nWrite the call again.'


def of_clients() -> list[Body]:
    """Eight requests: every task, and two with a prediction."""
    text = rewrite()[0]["content"].split("```")[1].replace("width", "n_chars")
    predicted = {"messages": rewrite(), "prediction": {"type": "content", "content": text}}
    return [*({"messages": make()} for make in TASKS.values()), *({**predicted, "seed": seed} for seed in range(2))]


def of_tools() -> list[Body]:
    """The prompts of the conversations A, B, A: the third goes on where the first one ended."""
    told = f"You can call this tool, with a JSON object:\n{json.dumps(TOOL, indent=1)}"
    first = [{"role": "system", "content": told}, *chat("What is the weather in Oslo, in celsius?")]
    result = [{"role": "assistant", "content": CALL}, *chat(RESULT)]
    return [{"messages": each} for each in (first, chat(f"Quote this table.\n{TABLE}"), first + result)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("bodies", "clients"), [(of_clients(), 8), (of_tools(), 1)], ids=["clients", "tools"])
def test_a_server(model: str, bodies: list[Body], clients: int) -> None:
    """The texts are those of plain decoding, of one request at a time."""
    said = []
    for drafts, at_once in (("auto", clients), ("none", 1)):
        with serve("--draft-type", drafts, model=path_of(model)) as server, ThreadPoolExecutor(at_once) as pool:
            # Long prompts of eight clients at once, on a slow machine.
            server.timeout = 900.0
            asked = ({k: v for k, v in body.items() if drafts == "auto" or k != "prediction"} for body in bodies)
            responses = list(pool.map(server.post, [{**body, "max_tokens": 24} for body in asked]))
        said.append([response.json()["choices"][0]["message"]["content"] for response in responses])
    assert said[0] == said[1]
