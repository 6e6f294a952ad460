"""Sessions of an agent or an editor, whose prompts mostly begin as earlier ones: what is answered, and what is fed."""

from __future__ import annotations

import random
from itertools import takewhile
from typing import Any

from conformance.doors.server.process import CHAT, Body, Client
from conformance.doors.server.requests import Answer, Request, Right, judge, load
from conformance.oracle.findings import broken
from conformance.subjects.prompts import Message
from conformance.subjects.tiny import CHARACTERS

# The end of a message, as a character.
END = "|"


def message(role: str, length: int, seed: int) -> Message:
    return {"role": role, "content": "".join(random.Random(seed).choices(CHARACTERS, k=length))}


def tokens_of(messages: list[Message]) -> str:
    """A prompt, a character for each token."""
    return "".join(f"{one['role'][0]}{one['content']}{END}" for one in messages) + "a"


def shared(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class Session:
    """Requests to a server, with the right answers. Every second is streamed, and two of three draft.

    It counts the tokens that are fed, and those that are new. ``by`` is what drafts for all requests.
    """

    def __init__(self, server: Client, right: Right, model: str, draft: Body, noise: float = 0.0, by: str = "") -> None:
        self.server, self.right, self.draft, self.noise, self.by = server, right, draft, noise, by
        self.body: Body = {"model": model, "max_tokens": 20, "logprobs": True}
        # Prompts with their answers. For each prompt, what was found, and the last message end that is known.
        self.known: list[str] = []
        self.found: list[int] = []
        self.ends: list[int] = []
        self.fed = self.new = 0

    def ask(self, *conversations: list[Message], **more: Any) -> list[Message]:
        """The answers to conversations, which are sent at the same time."""
        bodies = [self.body | {"messages": messages} | more for messages in conversations]
        draft = self.draft if len(self.known) % 3 else {}
        requests = [Request(CHAT, body, draft, self.by, streamed=len(self.known) % 2 == 1) for body in bodies]
        answers = load(self.server, requests, len(requests))
        prompts = [tokens_of(messages) for messages in conversations]
        for prompt, request, answer in zip(prompts, requests, answers, strict=True):
            judge(request, answer, self.right(request), self.noise)
            self.count(prompt, answer)
        ends = [answer.text + END * (answer.finish_reason == "stop") for answer in answers]
        self.known += [prompt + end for prompt, end in zip(prompts, ends, strict=True)]
        return [{"role": "assistant", "content": answer.text} for answer in answers]

    def count(self, prompt: str, answer: Answer) -> None:
        assert answer.usage["prompt_tokens"] == len(prompt)
        common = max((shared(prompt, one) for one in self.known), default=0)
        self.found.append(answer.cached_tokens)
        self.ends.append(prompt.rfind(END, 0, common) + 1)
        self.fed += len(prompt) - answer.cached_tokens
        self.new += len(prompt) - min(common, len(prompt) - 1)


SYSTEM = message("system", 200, 0)


def talk(session: Session) -> None:
    """What an agent asks."""
    asked = [SYSTEM, message("user", 60, 1)]
    asked += session.ask(asked)
    asked += [message("user", 40, 2)]
    asked += session.ask(asked)
    # The begin of an answer, which was thinking, is left out.
    asked[2] = {"role": "assistant", "content": asked[2]["content"][8:]}
    asked += [message("user", 50, 3)]
    asked += session.ask(asked)
    asked += [message("tool", 120, 4)]
    session.ask(asked)
    # The tool is called again, and says the same at first.
    asked[-1] = {"role": "tool", "content": asked[-1]["content"][:60] + message("tool", 60, 5)["content"]}
    session.ask(asked)
    session.ask(asked)
    # An earlier turn is edited.
    asked[3] = message("user", 40, 6)
    session.ask(asked)
    # With a seed each is alone, without a batch.
    session.ask([*asked[:5], message("user", 30, 7)], seed=1)
    session.ask([*asked[:5], message("user", 30, 11)], seed=1)
    session.ask([SYSTEM, message("user", 60, 8)])
    session.ask([*asked[:4], message("user", 30, 9)], [SYSTEM, message("user", 90, 10)])


def check_ends(session: Session) -> None:
    """The last end of a message that an earlier prompt has too is found, or more."""
    talk(session)
    for i, (found, end) in enumerate(zip(session.found, session.ends, strict=True)):
        if found < end:
            broken(f"prompt {i} of the session finds {found} tokens cached, and {end} of an earlier one are known")
