"""Draw random requests of every kind, send them to a server, and compare the answers with plain decoding."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

from conformance.doors.server.process import CHAT, TEXT, Client, Stream
from conformance.subjects.prompts import chat, fenced, json_edit, json_lookup, tool_call

Body = dict[str, Any]

CODE = """\
total = 0
for name, value in rows:
    if value > limit:
        total += value
        text.append(name)
print(total, text)"""
EDITED = CODE.replace("total", "count")

# The drafting fields of a request, and the strategy that its answer has to name.
DRAFTS: list[tuple[Body, str]] = [
    ({"draft_type": "auto"}, "EditStrategy"),
    ({"draft_type": "suffix", "num_draft_tokens": 16, "disable_adaptive_gate": True}, "SuffixStrategy"),
    ({"draft_type": "auto", "ngram_size": 2, "disable_adaptive_gate": True}, "NgramSimpleStrategy"),
    ({"draft_type": "ngram-simple", "num_draft_tokens": 3}, "NgramSimpleStrategy"),
    ({"draft_type": "suffix", "draft_margin": 0.1}, "SuffixStrategy"),
    ({"draft_type": "ngram-mod", "ngram_size": 4, "disable_adaptive_gate": True}, "NgramModStrategy"),
    ({"draft_type": "ngram-mod", "num_draft_tokens": "auto"}, "NgramModStrategy"),
    ({"prediction": {"type": "content", "content": EDITED}, "disable_adaptive_gate": True}, "EditStrategy"),
    (
        {"prediction": {"type": "content", "content": [{"type": "text", "text": EDITED}]}, "draft_type": "ngram-mod"},
        "NgramModStrategy",
    ),
]
# The longest draft of "auto".
MOST_DRAFTED = 15

NAMES = [("total", "count"), ("value", "item"), ("name", "key"), ("text", "list")]
EDITS = [f"Change `{old}` to `{new}`." for old, new in NAMES]
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


@dataclass(frozen=True)
class Request:
    """A request. Requests with the same path and body get the same text.

    Args:
        path: the path on the server.
        body: the fields other than drafting.
        draft: the fields of drafting.
        strategy: the strategy that has to draft for it.
        streamed: whether the answer is a stream of events.
    """

    path: str
    body: Body
    draft: Body = field(default_factory=dict)
    strategy: str = ""
    streamed: bool = False

    @property
    def key(self) -> str:
        return self.path + json.dumps(self.body, sort_keys=True)

    @property
    def plain(self) -> Request:
        """The same request without drafting and without streaming."""
        return Request(self.path, self.body)

    @property
    def is_random(self) -> bool:
        """Whether the server samples without a seed."""
        return "temperature" in self.body and "seed" not in self.body


@dataclass(frozen=True)
class Answer:
    status: int
    text: str = ""
    finish_reason: str | None = None
    usage: Body = field(default_factory=dict)
    error: str = ""
    # The tokens and their log probabilities, if the request asks for them.
    logprobs: tuple[tuple[int, float], ...] = ()

    @property
    def draft(self) -> Body:
        """The statistics of drafting in the answer. Empty without drafting."""
        counts: Body = self.usage.get("completion_tokens_details", {}).get("draft", {})
        return counts

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


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


def draw_body(rng: random.Random) -> tuple[str, Body]:
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


def draw(rng: random.Random, bodies: Sequence[tuple[str, Body]]) -> Request:
    """A random request with one of the bodies: drafted or not, streamed or not."""
    path, body = rng.choice(bodies)
    draft, strategy = rng.choice(DRAFTS) if rng.random() < 0.6 else ({}, "")
    if body.keys() & {"temperature", *(name for penalty in PENALTIES for name in penalty)}:
        # A draft margin needs greedy decoding without penalties.
        draft = {name: value for name, value in draft.items() if name != "draft_margin"}
    return Request(path, body, draft, strategy, rng.random() < 0.4)


def send(client: Client, request: Request) -> Answer:
    body = request.body | request.draft
    if request.streamed:
        return read_events(client.stream(body | {"stream_options": {"include_usage": True}}, request.path))
    return read(client.post(body, request.path))


def read(response: requests.Response) -> Answer:
    answer = response.json()
    if response.status_code != 200:
        return Answer(response.status_code, error=answer["error"]["message"])
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"].get("content", "")
    return Answer(200, text, choice["finish_reason"], answer["usage"], logprobs=_logprobs([choice]))


def read_events(stream: Stream) -> Answer:
    if stream.status != 200:
        return Answer(stream.status, error=stream.body)
    assert stream.done, stream.body
    choices = [choice for event in stream.events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1, reasons
    return Answer(stream.status, stream.text, reasons[0], stream.events[-1]["usage"], logprobs=_logprobs(choices))


def _logprobs(choices: list[Body]) -> tuple[tuple[int, float], ...]:
    found = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content", [])]
    return tuple((one["id"], one["logprob"]) for one in found)


def follow(client: Client, path: str, body: Body) -> Generator[str, None, None]:
    """The pieces of text of a stream as they come. Closing the generator closes the connection."""
    url = client.url + path
    with requests.post(url, json=body | {"stream": True}, timeout=client.timeout, stream=True) as response:
        assert response.status_code == 200, response.text
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                assert "error" not in event, event
                choice = event["choices"][0]
                yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def judge(request: Request, answer: Answer, right: Answer) -> None:
    """Compare an answer with the right one: that of a server with only the plain request."""
    assert answer.status == 200, answer
    assert answer.usage["prompt_tokens"] == right.usage["prompt_tokens"]
    if request.is_random:
        assert answer.finish_reason in ("stop", "length")
        assert answer.usage["completion_tokens"] <= request.body["max_tokens"]
    else:
        assert answer.text == right.text
        assert answer.finish_reason == right.finish_reason
        assert answer.usage["completion_tokens"] == right.usage["completion_tokens"]
    if request.draft:
        judge_counts(request, answer)
    else:
        assert not answer.draft


def judge_counts(request: Request, answer: Answer) -> None:
    """Check the counts: a pass gives one token and the accepted ones. An undrafted last token costs one more pass."""
    draft, n_tokens = answer.draft, answer.usage["completion_tokens"]
    assert draft.get("strategy") == request.strategy, answer
    assert 0 <= draft["accepted"] <= draft["drafted"], answer
    most = request.draft.get("num_draft_tokens", "auto")
    most_behind = most if isinstance(most, int) else MOST_DRAFTED
    n_behind = draft["forwards"] - draft["near_ties"] + draft["accepted"] - n_tokens
    assert 1 <= n_behind <= most_behind, answer
