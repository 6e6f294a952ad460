"""Random request bodies for mlx_lm.server: valid ones, and ones with junk in some fields."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from conformance.testing.server.process import CHAT, TEXT

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


def unit() -> Values:
    return st.one_of(st.floats(0, 1), st.sampled_from([0, 1]))


def often(valid: Values, junk: Values = JUNK) -> Values:
    """A valid value in four of five cases, else junk."""
    return st.integers(0, 4).flatmap(lambda n: junk if n == 0 else valid)


def record(required: dict[str, Values], optional: dict[str, Values] | None = None) -> Values:
    """An object. Sometimes a member is junk or missing, or the whole object is another value."""
    members = {name: often(value) for name, value in required.items()}
    others = {name: often(value) for name, value in (optional or {}).items()}
    whole = st.fixed_dictionaries(members, optional=others)
    without = st.fixed_dictionaries({}, optional={**members, **others})
    return often(whole, without | JUNK)


PART = record({"type": st.just("text"), "text": st.text(max_size=20)}) | record(
    {"type": st.sampled_from(["image_url", "input_image", "image", "input_audio", "refusal"])},
    {"image_url": st.just({"url": "data:image/png;base64,AAAA"}), "image": st.just("data:,"), "text": TEXTS},
)
CONTENT = st.one_of(st.text(max_size=40), st.none(), st.lists(PART, max_size=3))
TOOL_CALL = record(
    {"type": st.just("function")},
    {
        "id": st.just("1"),
        "function": record({"name": TEXTS}, {"arguments": st.sampled_from(['{"a": 1}', "", "{", "NaN", "[" * 300])}),
    },
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGE = record(
    {"role": ROLES, "content": CONTENT}, {"tool_calls": st.lists(TOOL_CALL, max_size=2), "tool_call_id": st.just("1")}
)
PLAIN = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()})
TOOL = record({"type": st.just("function"), "function": record({"name": TEXTS}, {"parameters": st.just({})})})
PREDICTION = record(
    {"type": st.just("content"), "content": st.one_of(st.text(max_size=40), st.lists(PART, max_size=3))}
)

REQUIRED: dict[str, Values] = {
    "messages": often(st.lists(PLAIN, min_size=1, max_size=3), st.lists(MESSAGE, max_size=3) | JUNK),
    "prompt": often(st.text(min_size=1, max_size=60)),
    "max_tokens": often(st.integers(1, 4)),
}
SAMPLING: dict[str, Values] = {
    "temperature": st.sampled_from([0, 0.0, 0.5, 1, 1.5]),
    "top_p": unit(),
    "min_p": unit(),
    "top_k": st.integers(0, 1023) | st.sampled_from([1024, 100_000]),
    "repetition_penalty": st.floats(0, 2),
    "repetition_context_size": st.integers(0, 64),
    "presence_penalty": st.floats(-2, 2),
    "presence_context_size": st.integers(0, 64),
    "frequency_penalty": st.floats(-2, 2),
    "frequency_context_size": st.integers(0, 64),
    "xtc_probability": unit(),
    "xtc_threshold": st.floats(0, 0.5),
    "logit_bias": st.dictionaries(
        st.integers(-2, 1030).map(str) | TEXTS, often(st.floats(-100, 100)), min_size=1, max_size=3
    ),
    "seed": st.integers(-(2**63), 2**64 - 1),
}
DRAFTING: dict[str, Values] = {
    "draft_type": st.sampled_from(["none", "auto", "edit", "ngram-simple", "ngram-mod", "suffix"]),
    "num_draft_tokens": st.integers(0, 20) | st.just("auto"),
    "ngram_size": st.integers(1, 16),
    "disable_adaptive_gate": st.booleans(),
    "draft_margin": st.floats(0, 1) | st.just("auto"),
    "prediction": PREDICTION,
}
OTHERS: dict[str, Values] = {
    "stream": st.booleans(),
    "stream_options": record({}, {"include_usage": st.booleans()}),
    "stop": st.one_of(st.none(), st.text(max_size=4), st.lists(often(st.text(max_size=4)), max_size=4)),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(-1, 11),
    "max_completion_tokens": st.integers(1, 4),
    "model": st.just("default_model"),
    "draft_model": st.just("default_model"),
    "adapters": st.none(),
    "tools": st.lists(TOOL, max_size=2),
    "role_mapping": st.dictionaries(ROLES, often(st.text(max_size=8)), max_size=2),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["enable_thinking", "tokenize", "return_tensors", "padding", "documents", "tools"]) | TEXTS,
        JUNK,
        max_size=2,
    ),
    "n": st.integers(1, 2),
    "user": st.just("me"),
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body with a prompt and messages, so that it suits both endpoints, and a few other fields."""
    body = {name: draw(value) for name, value in REQUIRED.items()}
    for fields in (SAMPLING, DRAFTING, OTHERS):
        for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)):
            body[name] = draw(often(fields[name]))
    if draw(st.integers(0, 19)) == 0:
        body.pop(draw(st.sampled_from(sorted(REQUIRED))))
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
