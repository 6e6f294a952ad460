"""What clients send: requests of every kind, and sessions of an agent whose prompts begin alike."""

from __future__ import annotations

import random
from os.path import commonprefix
from typing import Any

# Trees without it cannot answer these requests.
import mlx_lm.draft  # noqa: F401

from conformance.doors.server.process import Body, Client
from conformance.doors.server.requests import Right, judge, load
from conformance.oracle.findings import broken
from conformance.subjects.prompts import Message, chat, fenced, json_edit, tool_call
from conformance.subjects.tiny import CHARACTERS

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
SHORT: Body = {"messages": chat("Quote."), "max_tokens": 4}
ASK: Body = {"messages": EDIT, "max_tokens": 100}
ROW: Body = {"messages": EDIT, "max_tokens": 40}
# A copy that continues until its client leaves, far longer than any other answer.
FOREVER: Body = ROW | ENDLESS | {"max_tokens": 2000}
PREDICTED: Body = {"prediction": {"type": "content", "content": EDITED}, "disable_adaptive_gate": True}

# The drafting fields of a request.
DRAFTS: list[Body] = [
    {"draft_type": "auto"},
    {"draft_type": "suffix", "num_draft_tokens": 16, "disable_adaptive_gate": True},
    {"draft_type": "auto", "ngram_size": 2, "disable_adaptive_gate": True},
    {},
    {"draft_type": "suffix", "draft_margin": 0.1},
    {"draft_type": "ngram-mod", "ngram_size": 4, "disable_adaptive_gate": True},
    PREDICTED,
]
# Each of them changes the text of an edit. Otherwise it would prove nothing.
PENALTIES: list[Body] = [
    {"repetition_penalty": 1.6},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"logit_bias": {"11": 3.0, "203": -20.0}},
]
# The others. Stop words occur in the middle of the text that the answers copy. Without a seed a text that is sampled is
# unpredictable. A request with a seed is served alone.
FIELDS: list[Body] = [
    *({"stop": stop, "max_tokens": 40} for stop in ("rows:", ["value:", "append"], [" if", "zzz"], '": "')),
    *({}, *PENALTIES, {"max_tokens": 1}),
    *({"seed": 1}, {"temperature": 0.8}, {"temperature": 1.5, "top_p": 0.9, "seed": 7}),
]
TOOLS: list[Body] = [{"type": "function", "function": {"name": "show", "parameters": {"type": "object"}}}]
# Several share the code before the question.
CONVERSATIONS: list[Body] = [
    *({"messages": [{"role": "system", "content": fenced(CODE)}, *chat(edit)]} for edit in EDITS[:2]),
    {"messages": tool_call(random.Random(1), 2)[:-1], "tools": TOOLS},
    {"messages": json_edit(random.Random(0), 2)[:-1]},
    {"prompt": f"<|user|>{EDITS[2]}\n{fenced(CODE)}<|end|><|assistant|>"},
]


def mixed(n: int) -> list[Body]:
    """Requests of all kinds, streamed or not. The lengths of the tables have no common factor: all pairs come."""
    requests = []
    for i in range(n):
        fields, draft = FIELDS[i % len(FIELDS)], DRAFTS[i % len(DRAFTS)]
        if fields.keys() & {"temperature", *(name for penalty in PENALTIES for name in penalty)}:
            # A draft margin needs greedy decoding without penalties.
            draft = {name: value for name, value in draft.items() if name != "draft_margin"}
        conversation = CONVERSATIONS[i % len(CONVERSATIONS)]
        requests.append({"max_tokens": 16, "stream": i % 11 < 5} | conversation | fields | draft)
    return requests


# The end of a message, as a character. Each character is a token.
END = "|"


def message(role: str, length: int, seed: int) -> Message:
    return {"role": role, "content": "".join(random.Random(seed).choices(CHARACTERS, k=length))}


class Session:
    """Requests to a server, with the right answers. Every second is streamed, and two of three draft.

    It counts the tokens that are fed, and those that are new. ``by`` is the draft_type of the server.
    """

    def __init__(
        self, server: Client, right: Right, model: str, draft: Body, noise: float = 0.0, by: str = "none"
    ) -> None:
        self.server, self.right, self.draft, self.noise, self.by = server, right, draft, noise, by
        self.body: Body = {"model": model, "max_tokens": 12, "logprobs": True}
        # Prompts with their answers. For each prompt, what was found, and where it has to go on from: the end of one of
        # these, or the last message end that is known.
        self.known: list[str] = []
        self.found: list[int] = []
        self.ends: list[int] = []
        self.fed = self.new = 0

    def ask(self, *conversations: list[Message], **more: Any) -> list[Message]:
        """The answers to conversations, which are sent at the same time."""
        more |= {"stream": len(self.known) % 2 == 1} | (self.draft if len(self.known) % 3 else {})
        bodies = [self.body | {"messages": messages} | more for messages in conversations]
        answers, whole = load(self.server, bodies, len(bodies)), list[str]()
        for messages, body, answer in zip(conversations, bodies, answers, strict=True):
            judge(body, answer, self.right(body), self.noise, self.by)
            prompt = "".join(f"{one['role'][0]}{one['content']}{END}" for one in messages) + "a"
            assert answer.usage["prompt_tokens"] == len(prompt)
            common = max((len(commonprefix([prompt, one])) for one in self.known), default=0)  # noqa: RUF071
            self.found.append(answer.cached_tokens)
            whole_ones = [len(one) for one in self.known if prompt.startswith(one)]
            self.ends.append(max(prompt.rfind(END, 0, common) + 1, *whole_ones, 0))
            self.fed += len(prompt) - answer.cached_tokens
            self.new += len(prompt) - min(common, len(prompt) - 1)
            whole.append(prompt + answer.text + END * (answer.finish_reason == "stop"))
        self.known += whole
        return [{"role": "assistant", "content": answer.text} for answer in answers]


SYSTEM = message("system", 100, 0)


def talk(session: Session) -> None:
    """What an agent asks."""
    asked = [SYSTEM, message("user", 40, 1)]
    asked += session.ask(asked)
    asked += [message("user", 30, 2)]
    asked += session.ask(asked)
    # The begin of an answer, which was thinking, is left out.
    asked[2] = {"role": "assistant", "content": asked[2]["content"][8:]}
    asked += [message("user", 30, 3)]
    asked += session.ask(asked)
    asked += [message("tool", 80, 4)]
    session.ask(asked)
    # The tool is called again, and says the same at first.
    asked[-1] = {"role": "tool", "content": asked[-1]["content"][:40] + message("tool", 40, 5)["content"]}
    session.ask(asked)
    session.ask(asked)
    # An earlier turn is edited.
    asked[3] = message("user", 30, 6)
    session.ask(asked)
    # With a seed each is alone, without a batch.
    alone = [*asked[:5], message("user", 30, 7)]
    alone += session.ask(alone, seed=1)
    session.ask([*alone, message("user", 30, 11)], seed=1)
    session.ask([SYSTEM, message("user", 40, 8)])
    session.ask([*asked[:4], message("user", 30, 9)], [SYSTEM, message("user", 60, 10)])


def check_ends(session: Session) -> None:
    """An earlier prompt with its answer is found, or the last end of a message that it has too, or more."""
    talk(session)
    for i, (found, end) in enumerate(zip(session.found, session.ends, strict=True)):
        if found < end:
            broken(f"prompt {i} of the session finds {found} tokens cached, and {end} of an earlier one are known")
