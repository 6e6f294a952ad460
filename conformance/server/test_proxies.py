"""litellm in front of `mlx_lm.server`: Claude Code asks it for messages, Codex for responses (docs/use.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.doors.server.process import Inside
from conformance.doors.server.requests import Right
from conformance.server.traffic import ASK

CALL = {"type": "object", "properties": {"to": {"enum": ["total", "count"]}}, "required": ["to"]}
TOOL = {"name": "rename", "input_schema": CALL | {"additionalProperties": False}}
(TURN,) = ASK["messages"]


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    # It would ask the network for the prices of models.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm", reason="litellm is not installed: pip install litellm")


@pytest.fixture
def told(server: Inside) -> dict[str, Any]:
    return {"model": "custom_openai/default_model", "api_base": f"{server.url}/v1", "api_key": "none"}


def test_messages(litellm: Any, told: dict[str, Any], right: Right) -> None:
    """The second turn of a conversation reads nothing again."""
    asked: Any = {"max_tokens": 100, "temperature": 0, **told}
    first = litellm.anthropic.messages.create(messages=[TURN], **asked)
    assert [part["text"] for part in first["content"]] == [right(ASK).text]
    turns = [TURN, {"role": "assistant", "content": first["content"]}, TURN]
    second = litellm.anthropic.messages.create(messages=turns, **asked)
    before = first["usage"]
    assert second["usage"]["cache_read_input_tokens"] == sum(before.get(name, 0) for name in COUNTED), second["usage"]


COUNTED = ("input_tokens", "cache_read_input_tokens", "output_tokens")


def test_a_call(litellm: Any, told: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason='llguidance is not installed: pip install "mlx-lm[grammar]"')
    asked = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200, **told}
    said = litellm.anthropic.messages.create(messages=[TURN], **asked)
    (call,) = said["content"]
    assert (said["stop_reason"], call["name"], list(call["input"])) == ("tool_use", "rename", ["to"])


def test_responses(litellm: Any, told: dict[str, Any], right: Right) -> None:
    """Whole and as a stream."""
    asked: Any = {"input": TURN["content"], "max_output_tokens": 100, "temperature": 0, **told}
    assert litellm.responses(**asked).output_text == right(ASK).text
    events = [json.loads(event.model_dump_json()) for event in litellm.responses(stream=True, **asked)]
    assert "".join(event.get("delta") or "" for event in events) == right(ASK).text
