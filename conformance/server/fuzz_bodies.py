"""Random request bodies for mlx_lm.server: valid ones, and ones with junk in some places."""

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
FLOATS = st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), 1e308, 1e-320, -0.0]))
SCALARS: Values = st.one_of(st.none(), st.booleans(), INTS, FLOATS, TEXTS)
JUNK: Values = st.one_of(
    SCALARS,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
    ),
    st.sampled_from([100, 200]).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)
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
REQUIRED: dict[str, Values] = {
    "messages": st.lists(PLAIN, min_size=1, max_size=3) | st.lists(MESSAGE, max_size=3),
    "prompt": st.text(min_size=1, max_size=60),
    "max_tokens": st.integers(1, 4),
}
OPTIONAL: dict[str, Values] = {
    "temperature": st.sampled_from([0, 0.0, 0.5, 1, 1.5]),
    "top_k": st.integers(0, 1023) | st.sampled_from([1024, 100_000]),
    **dict.fromkeys(("top_p", "min_p", "xtc_probability"), UNIT),
    "xtc_threshold": st.floats(0, 0.5),
    "repetition_penalty": st.floats(0, 2),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), st.floats(-2, 2)),
    **{f"{kind}_context_size": st.integers(0, 64) for kind in ("repetition", "presence", "frequency")},
    "logit_bias": st.dictionaries(st.integers(-2, 1030).map(str) | TEXTS, st.floats(-100, 100), min_size=1, max_size=3),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "draft_type": st.sampled_from(["none", "auto", "edit", "ngram-simple", "ngram-mod", "suffix"]),
    "num_draft_tokens": st.integers(0, 20) | st.just("auto"),
    "ngram_size": st.integers(1, 16),
    "draft_margin": UNIT | st.just("auto"),
    "prediction": st.fixed_dictionaries({"type": st.just("content"), "content": CONTENT}),
    **dict.fromkeys(("stream", "logprobs", "disable_adaptive_gate"), st.booleans()),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "stop": st.none() | st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=4),
    "top_logprobs": st.integers(-1, 11),
    "max_completion_tokens": st.integers(1, 4),
    **dict.fromkeys(("model", "draft_model"), st.just("default_model")),
    "adapters": st.none(),
    "tools": st.lists(CALL, max_size=2),
    "role_mapping": st.dictionaries(ROLES, st.text(max_size=8), max_size=2),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["enable_thinking", "tokenize", "return_tensors", "padding", "documents", "tools"]) | TEXTS,
        JUNK,
        max_size=2,
    ),
    "n": st.integers(1, 2),
    "user": st.just("me"),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to the values inside a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body that suits both endpoints, with a few other fields. In some places it has junk or nothing."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONAL)), max_size=8, unique=True))
    given = {name: draw(value) for name, value in (REQUIRED | {name: OPTIONAL[name] for name in names}).items()}
    body: dict[str, Any] = json.loads(json.dumps(given))  # A value of a just() is one object for all bodies.
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(places(body))))
        inside = reduce(getitem, path, body)
        if draw(st.integers(0, 4)):
            inside[last] = draw(JUNK)
        else:
            del inside[last]
    return body


# None of these is a valid request.
CONTENTS: Values = st.one_of(
    st.binary(max_size=40).filter(lambda content: b"{" not in content),
    st.sampled_from(["[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 50_000, '{"seed": ' + "1" * 5000 + "}"]).map(
        str.encode
    ),
    st.sampled_from(["[]", "5", "null", '"a"', "NaN", "{}", "", "\ufeff{}"]).map(str.encode),
    st.integers(0, 23).map(lambda n: b'{"prompt": "hi", "a": 1}'[:n]),
    st.sampled_from([b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}', '{"prompt": "a"}'.encode("utf-16")]),
)
LENGTHS = st.sampled_from([b"-1", b"-99999999999", b"x", b"", b"1.5", b"0x10", b"9" * 12, b"9" * 30, None])


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """The bytes of a request with an invalid body or an invalid length."""
    head = f"POST {draw(st.sampled_from([CHAT, TEXT]))} HTTP/1.1\r\nHost: localhost\r\n".encode()
    if draw(st.booleans()):
        content: bytes = draw(CONTENTS)
        # A request that promises more bytes than it sends is a client that left.
        promised = len(content) + draw(st.sampled_from([0, 0, 1, 1000]))
        return head + b"Content-Length: %d\r\n\r\n" % promised + content
    length: bytes | None = draw(LENGTHS)
    return head + (b"" if length is None else b"Content-Length: " + length + b"\r\n") + b"\r\n"
