"""The fields of requests: what may be sent in each, and what a server has to refuse. Also random bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

from hypothesis import strategies as st

from conformance.doors.server.process import CHAT, TEXT

Values = st.SearchStrategy[Any]
# Any code point, including unpaired surrogates.
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=12)
# No small numbers: they would be valid limits, and an answer could have any length.
INTS = st.sampled_from([-(2**70), -1, 0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, 10**400])
FLOATS = st.floats() | st.sampled_from([float("nan"), float("inf"), 1e308, 1e-320, -0.0])
SCALARS: Values = st.none() | st.booleans() | INTS | FLOATS | TEXTS
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
JUNK: Values = NESTED | st.sampled_from([100, 200]).map(lambda depth: json.loads("[" * depth + "]" * depth))
UNIT = st.floats(0, 1) | st.sampled_from([0, 1])

PART = {"type": "text", "text": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ARGUMENTS = st.sampled_from(['{"a": 1}', "", "{", "NaN", "[" * 300])
CALL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": TEXTS, "arguments": ARGUMENTS})}
)
CONTENT = st.text(max_size=40) | st.lists(st.sampled_from([PART, IMAGE, {"type": "refusal"}]), max_size=3)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": CONTENT},
    optional={"tool_calls": st.lists(CALL, max_size=2), "tool_call_id": st.just("1")},
)
PLAIN = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()})
TEMPLATE = st.sampled_from(["enable_thinking", "tokenize", "return_tensors", "padding", "documents", "tools"])

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

# Each field that mlx_lm.server reads: what it may be, and what is refused.
FIELDS: dict[str, tuple[Values, list[Any]]] = {
    "messages": (st.lists(PLAIN, min_size=1, max_size=3) | st.lists(MESSAGE, max_size=3), ["hi", 3, [3]]),
    "prompt": (st.text(min_size=1, max_size=60), [3, [5, 6]]),
    "max_tokens": (st.integers(1, 4), NUMBER),
    "max_completion_tokens": (st.integers(1, 4), NUMBER),
    "temperature": (st.sampled_from([0, 0.0, 0.5, 1, 1.5]), NUMBER),
    "top_p": (UNIT, NUMBER),
    "top_k": (st.integers(0, 1023) | st.sampled_from([1024, 100_000]), NUMBER),
    "min_p": (UNIT, NUMBER),
    "xtc_probability": (UNIT, NUMBER),
    "xtc_threshold": (st.floats(0, 0.5), NUMBER),
    "repetition_penalty": (st.floats(0, 2), NUMBER),
    "presence_penalty": (st.floats(-2, 2), NUMBER),
    "frequency_penalty": (st.floats(-2, 2), NUMBER),
    **{f"{kind}_context_size": (st.integers(0, 64), NUMBER) for kind in PENALTIES},
    "logit_bias": (
        st.dictionaries(st.integers(-2, 1030).map(str) | TEXTS, st.floats(-100, 100), min_size=1, max_size=3),
        [{"1": value} for value in NUMBER],
    ),
    "seed": (st.integers(-(2**63), 2**64 - 1), NUMBER),
    "draft_type": (
        st.sampled_from(["none", "auto", "edit", "ngram-simple", "ngram-mod", "suffix"]),
        ["oracle", 3, ["auto"]],
    ),
    "num_draft_tokens": (st.integers(0, 20) | st.just("auto"), [*NUMBER, -1, 10**9, 1.5, "8", [8]]),
    "ngram_size": (st.integers(1, 16), [*NUMBER, 0, -1, 10**9, 2.0, "3"]),
    "disable_adaptive_gate": (st.booleans(), [1, "true", []]),
    "draft_margin": (UNIT | st.just("auto"), [*NUMBER, -1, "small", []]),
    "response_format": (st.sampled_from([{"type": "text"}, {"type": "json_object"}]), FORMATS),
    "prediction": (st.fixed_dictionaries({"type": st.just("content"), "content": CONTENT}), PREDICTIONS),
    "stream": (st.booleans(), [1, "true"]),
    "stream_options": (st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}), [3, []]),
    "logprobs": (st.booleans(), [1, "true"]),
    "top_logprobs": (st.integers(-1, 11), [*NUMBER, 12]),
    "stop": (st.none() | st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=4), [5, [5], "x" * 4097]),
    "model": (st.just("default_model"), [3, []]),
    "draft_model": (st.just("default_model"), [3, []]),
    "adapters": (st.none(), [3, []]),
    "tools": (st.lists(CALL, max_size=2), []),
    "tool_choice": (st.sampled_from(["auto", "none", "required"]), CHOICES),
    "role_mapping": (st.dictionaries(ROLES, st.text(max_size=8), max_size=2), []),
    "chat_template_kwargs": (st.dictionaries(TEMPLATE | TEXTS, JUNK, max_size=2), [3, [], {"padding": 1}]),
    "n": (st.integers(1, 2), [*NUMBER, 2, 0]),
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
    # A value of a just() is one object for all bodies.
    body: dict[str, Any] = json.loads(json.dumps({name: draw(FIELDS[name][0]) for name in names} | {"user": "me"}))
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(places(body))))
        inside = reduce(getitem, path, body)
        if draw(st.integers(0, 4)):
            inside[last] = draw(JUNK)
        else:
            del inside[last]
    return body
