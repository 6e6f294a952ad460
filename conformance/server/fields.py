"""The fields of requests: what may be sent in each, and what a server has to refuse. Also random bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

from hypothesis import strategies as st

from conformance.doors.server.process import CHAT, TEXT

# Any code point, including unpaired surrogates.
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=12)
# No small numbers: they would be valid limits, and an answer could have any length.
NUMBERS = st.floats() | st.sampled_from([-(2**70), -1, 0, 2**31, 2**63, 2**64, 10**400, float("nan"), 1e-320])
SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | NUMBERS | TEXTS
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
) | st.sampled_from([100, 200]).map(lambda depth: json.loads("[" * depth + "]" * depth))

PARTS = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
CALLS = [
    {"type": "function", "function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "", "{", "[" * 300)
]
TURNS: list[Any] = [{"role": role, "content": "hi"} for role in ("system", "user", "assistant")]
TURNS += [{"role": "user", "content": PARTS[:1]}, {"role": "user", "content": PARTS}]
TURNS += [{"role": "assistant", "content": "", "tool_calls": [call]} for call in CALLS]

# No numbers: each is refused by the name of its field, and by its value.
NUMBER: list[Any] = [True, False, *map(float, ("nan", "inf", "-inf")), 1e308, 10**30, -(10**30), "1", [1], {}]
CONTENTS = [None, 3, "\ud800", [3], [{"type": "text"}]]
PREDICTIONS = ["text", 3, [], {}, {"content": "text"}, {"type": "text", "content": "a"}]
PREDICTIONS += [{"type": "content", "content": content} for content in CONTENTS]
FORMATS: list[Any] = ["json_object", 3, {}, {"type": "xml"}, {"type": "json_schema"}]
FORMATS += [{"type": "json_schema", "json_schema": {"schema": 3}}, {"type": "json_schema", "json_schema": {}}]
# No request of the suite's rows has tools, so none may be required.
CHOICES: list[Any] = ["any", "required", 3, [], {}, {"type": "function", "function": {"name": "f"}}]
PENALTIES = ("repetition", "presence", "frequency")

# Each field that mlx_lm.server reads: some of what it may be, and what is refused.
FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "messages": ([*([turn] for turn in TURNS), TURNS[:3], TURNS[-2:], []], ["hi", 3, [3]]),
    "prompt": (["hi", "def total(rows):\n", "\u2603\U0001f600", ["hi"]], [3, [5, 6], []]),
    "max_tokens": ([1, 4], NUMBER),
    "max_completion_tokens": ([1, 4], NUMBER),
    "temperature": ([0, 0.5, 1.5], NUMBER),
    "top_p": ([0, 0.5, 1], NUMBER),
    "top_k": ([0, 50, 1024, 100_000], NUMBER),
    "min_p": ([0, 0.5, 1], NUMBER),
    "xtc_probability": ([0, 0.5, 1], NUMBER),
    "xtc_threshold": ([0, 0.3, 0.5], NUMBER),
    "repetition_penalty": ([0, 1.1, 2], NUMBER),
    "presence_penalty": ([-2, 0.5, 2], NUMBER),
    "frequency_penalty": ([-2, 0.5, 2], NUMBER),
    **{f"{kind}_context_size": ([0, 1, 64], NUMBER) for kind in PENALTIES},
    "logit_bias": ([{"0": -100, "1023": 2.5}, {"1030": 1}, {"-2": 1}, {"x": 1}], [{"1": value} for value in NUMBER]),
    "seed": ([-(2**63), 0, 7, 2**64 - 1], NUMBER),
    "draft_type": (["none", "auto", "edit", "ngram-simple", "ngram-mod", "suffix"], ["oracle", 3, ["auto"]]),
    "num_draft_tokens": ([0, 1, 20, "auto"], [*NUMBER, -1, 10**9, 1.5, "8", [8]]),
    "ngram_size": ([1, 3, 16], [*NUMBER, 0, -1, 10**9, 2.0, "3"]),
    "disable_adaptive_gate": ([True, False], [1, "true", []]),
    "draft_margin": ([0, 0.5, 1, "auto"], [*NUMBER, -1, "small", []]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}], FORMATS),
    "prediction": ([{"type": "content", "content": content} for content in ("hi", PARTS[:1], PARTS)], PREDICTIONS),
    "stream": ([True, False], [1, "true"]),
    "stream_options": ([{}, {"include_usage": True}, {"include_usage": False}], [3, []]),
    "logprobs": ([True, False], [1, "true"]),
    "top_logprobs": ([-1, 1, 11], [*NUMBER, 12]),
    "stop": ([None, "", "a", ["a", " ="]], [5, [5], "x" * 4097]),
    "model": (["default_model"], [3, []]),
    "draft_model": (["default_model"], [3, []]),
    "adapters": ([None], [3, []]),
    "tools": ([[], CALLS[:1], CALLS[2:]], []),
    "tool_choice": (["auto", "none", "required"], CHOICES),
    "role_mapping": ([{}, {"user": "me", "tool": ""}], []),
    "chat_template_kwargs": (
        [{name: True} for name in ("enable_thinking", "tokenize", "padding", "documents", "tools")],
        [3, [], {"padding": 1}],
    ),
    "n": ([1, 2], [*NUMBER, 2, 0]),
}
# Fields that only the other endpoint has.
ONLY = {"messages": CHAT, "tool_choice": CHAT, "prompt": TEXT}
REQUIRED = ("messages", "prompt", "max_tokens")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to the values inside a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body that suits both endpoints, with a few other fields. In some places it has junk or nothing."""
    optional = sorted(FIELDS.keys() - {*REQUIRED})
    names = [*REQUIRED, *draw(st.lists(st.sampled_from(optional), max_size=8, unique=True))]
    body: dict[str, Any] = deepcopy({name: draw(st.sampled_from(FIELDS[name][0])) for name in names})
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(places(body))))
        inside = reduce(getitem, path, body)
        if draw(st.integers(0, 4)):
            inside[last] = draw(JUNK)
        else:
            del inside[last]
    return body
