"""Requests of every kind that clients send, drawn at random."""

from __future__ import annotations

import random
from typing import Any

# Trees without it cannot answer these requests.
import mlx_lm.draft  # noqa: F401

from conformance.doors.server.process import CHAT, TEXT, Body
from conformance.doors.server.requests import Request
from conformance.subjects.prompts import chat, fenced, json_edit, json_lookup, tool_call

CODE = """\
total = 0
for name, value in rows:
    if value > limit:
        total += value
        text.append(name)
print(total, text)"""
EDITED = CODE.replace("total", "count")
NAMES = [("total", "count"), ("value", "item"), ("name", "key"), ("text", "list")]
EDITS = [f"Change `{old}` to `{new}`." for old, new in NAMES]
EDIT = chat(f"{EDITS[0]}\n{fenced(CODE)}")
GATE_OFF: Body = {"draft_type": "suffix", "disable_adaptive_gate": True}
# At most two tokens in each forward pass, so that a long answer takes long.
SLOWLY: Body = GATE_OFF | {"num_draft_tokens": 1}
# Forbids the end tokens of the fixture.
ENDLESS: Body = {"max_tokens": 300, "logit_bias": {"0": -100, "4": -100}}
SHORT = Request(CHAT, {"messages": chat("Quote."), "max_tokens": 4})
ASK = Request(CHAT, {"messages": EDIT, "max_tokens": 100})
PREDICTED: Body = {"prediction": {"type": "content", "content": EDITED}, "disable_adaptive_gate": True}

# The drafting fields of a request, and the strategy that its answer has to name.
DRAFTS: list[tuple[Body, str]] = [
    ({"draft_type": "auto"}, "EditStrategy"),
    ({"draft_type": "suffix", "num_draft_tokens": 16, "disable_adaptive_gate": True}, "SuffixStrategy"),
    ({"draft_type": "auto", "ngram_size": 2, "disable_adaptive_gate": True}, "NgramSimpleStrategy"),
    ({"draft_type": "ngram-simple", "num_draft_tokens": 3}, "NgramSimpleStrategy"),
    ({"draft_type": "suffix", "draft_margin": 0.1}, "SuffixStrategy"),
    ({"draft_type": "ngram-mod", "ngram_size": 4, "disable_adaptive_gate": True}, "NgramModStrategy"),
    ({"draft_type": "ngram-mod", "num_draft_tokens": "auto"}, "NgramModStrategy"),
    (PREDICTED, "EditStrategy"),
    (
        {"prediction": {"type": "content", "content": [{"type": "text", "text": EDITED}]}, "draft_type": "ngram-mod"},
        "NgramModStrategy",
    ),
]
# They occur in the middle of the text that the answers copy.
STOPS = ["rows:", "limit:\n", ["value:", "append"], [" if", "zzz"], '": "']
# Each of them changes the text of an edit. Otherwise it would prove nothing.
PENALTIES: list[Body] = [
    {"repetition_penalty": 1.6},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"logit_bias": {"11": 3.0, "203": -20.0}},
]
# Without a seed the text is unpredictable.
SAMPLINGS: list[Body] = [{"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9, "seed": 7}]
TOOLS: list[Body] = [{"type": "function", "function": {"name": "show", "parameters": {"type": "object"}}}]


def _conversation(rng: random.Random) -> tuple[str, Body]:
    edit = rng.choice(EDITS)
    make = rng.choice([json_edit, json_lookup, tool_call])
    # Several requests share the code before the question, or the whole prompt.
    system = {"role": "system", "content": fenced(CODE)}
    conversations: list[tuple[str, Body]] = [
        (CHAT, {"messages": [system, *chat(edit)]}),
        (CHAT, {"messages": chat(f"{edit}\n{fenced(CODE)}")}),
        (CHAT, {"messages": make(random.Random(rng.randrange(2)), 2)[:-1]}),
        (CHAT, {"messages": tool_call(random.Random(rng.randrange(2)), 2)[:-1], "tools": TOOLS}),
        (TEXT, {"prompt": f"<|user|>{edit}\n{fenced(CODE)}<|end|><|assistant|>"}),
    ]
    path, body = rng.choice(conversations)
    return path, dict(body)


def _body(rng: random.Random) -> tuple[str, Body]:
    """A random body, without the fields of drafting."""
    path, body = _conversation(rng)
    body["max_tokens"] = rng.choice([1, 8, 12, 20])
    if rng.random() < 0.25:
        body |= {"stop": rng.choice(STOPS), "max_tokens": 40}
    if rng.random() < 0.2:
        body |= rng.choice(PENALTIES)
    if rng.random() < 0.1:
        # The server serves a request with a seed alone.
        body["seed"] = 1
    if rng.random() < 0.15:
        body |= rng.choice(SAMPLINGS)
    return path, body


def mixed(n: int, seed: int = 5) -> list[Request]:
    """Requests with a few bodies: drafted or not, streamed or not."""
    rng = random.Random(seed)
    bodies = [_body(rng) for _ in range(60)]
    return [_request(rng, *rng.choice(bodies)) for _ in range(n)]


def _request(rng: random.Random, path: str, body: Body) -> Request:
    draft, strategy = rng.choice(DRAFTS) if rng.random() < 0.6 else ({}, "")
    if body.keys() & {"temperature", *(name for penalty in PENALTIES for name in penalty)}:
        # A draft margin needs greedy decoding without penalties.
        draft = {name: value for name, value in draft.items() if name != "draft_margin"}
    return Request(path, body, draft, strategy, rng.random() < 0.4)


def drafted(request: Request, draft: Body) -> Request:
    return Request(request.path, request.body, draft, "SuffixStrategy" if draft else "")


def edit(draft: Body, **more: Any) -> Request:
    return drafted(Request(CHAT, {"messages": EDIT, "max_tokens": 40, **more}), draft)
