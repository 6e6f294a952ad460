"""A prompt that begins as an earlier one goes on from there, and is answered as by a server that never saw one.

The conversations are those of agents and editors: a turn is edited, thinking is left out, the output of a tool is
replaced, a question is asked again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from conformance.server.prefix_faults import (
    go_on_in_the_checkpoint,
    note_a_token_too_many,
    take_none_with_drafts,
    take_over_all_checkpoints,
)
from conformance.testing.models.tiny import CHARACTERS, ENDED, ENDED_TEMPLATE, save
from conformance.testing.server.clients import GATE_OFF, Reference, load
from conformance.testing.server.process import CHAT, FAST, Server, serve
from conformance.testing.server.traffic import Answer, Body, Request
from conformance.testing.texts.workloads import Message

pytestmark = pytest.mark.contract("C11")

# llama has no windows, so that it feeds nothing but what is new. Keys of lfm2 have 32 numbers, as quantizing needs.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"layer_types": None, "sliding_window": None, "head_dim": 32},
    "gemma3_text": {},
    "qwen3_next": {},
    "lfm2": {"num_attention_heads": 2, "num_key_value_heads": 1},
}
# Attention over a window adds up in another order if a chunk begins elsewhere.
NOISE = {"gemma3_text": 1e-5}
# A prompt is read token by token: what is read before its end is quantized in any case.
QUANTIZED = ("--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "0", "--prefill-step-size", "1")
# More checkpoints than a session has tokens.
OPTIONS = ("--prompt-cache-checkpoints", "999")
OFF = ("--prompt-cache-checkpoints", "0")
COLD = ("--prompt-cache-size", "0", *OFF)
# The end of a message, as a character.
END = "|"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: save(name, folder, ENDED_TEMPLATE, **ENDED, **changes) for name, changes in MODELS.items()}


@pytest.fixture(scope="module")
def cold() -> Iterator[Reference]:
    """The answers of a server that keeps nothing."""
    with serve(*COLD, env=FAST) as server:
        yield Reference(server)


def message(role: str, length: int, seed: int) -> Message:
    return {"role": role, "content": "".join(random.Random(seed).choices(CHARACTERS, k=length))}


def tokens_of(messages: list[Message]) -> str:
    """A prompt, a character for each token."""
    return "".join(f"{one['role'][0]}{one['content']}{END}" for one in messages) + "a"


def shared(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class Session:
    """Requests to a server, whose answers are those of a cold one. Every second is streamed, and two of three draft.

    It counts the tokens that are fed, and those that are new.
    """

    def __init__(self, server: Server, cold: Reference, models: dict[str, Path], model: str, draft: Body) -> None:
        self.server, self.cold, self.draft = server, cold, draft
        self.noise = NOISE.get(model, 0.0)
        self.body: Body = {"model": str(models[model]), "max_tokens": 20, "logprobs": True}
        # Prompts with their answers. For each prompt, what was found, and the last message end that is known.
        self.known: list[str] = []
        self.found: list[int] = []
        self.ends: list[int] = []
        self.fed = self.new = 0

    def ask(self, *conversations: list[Message], **more: Any) -> list[Message]:
        """The answers to conversations, which are sent at the same time."""
        bodies = [self.body | {"messages": messages} | more for messages in conversations]
        draft = self.draft if len(self.known) % 3 else {}
        requests = [Request(CHAT, body, draft, streamed=len(self.known) % 2 == 1) for body in bodies]
        answers = load(self.server, requests, len(requests))
        prompts = [tokens_of(messages) for messages in conversations]
        for prompt, request, answer in zip(prompts, requests, answers, strict=True):
            self.check(request, answer)
            self.count(prompt, answer)
        ends = [answer.text + END * (answer.finish_reason == "stop") for answer in answers]
        self.known += [prompt + end for prompt, end in zip(prompts, ends, strict=True)]
        return [{"role": "assistant", "content": answer.text} for answer in answers]

    def check(self, request: Request, answer: Answer) -> None:
        right = self.cold(request)
        assert (answer.text, answer.finish_reason) == (right.text, right.finish_reason), request
        (tokens, logprobs), (others, expected) = (zip(*one.logprobs, strict=True) for one in (answer, right))
        assert tokens == others
        assert logprobs == pytest.approx(expected, rel=0, abs=self.noise), request

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


@pytest.mark.parametrize("model", MODELS)
def test_a_session(cold: Reference, models: dict[str, Path], model: str) -> None:
    """At most 1.3 times the new tokens are fed. With drafts, the last message end that is known is found."""
    with serve(env=FAST) as server:
        plain = Session(server, cold, models, model, {})
        talk(plain)
    assert plain.fed <= plain.new * (1 if model == "llama" else 1.3)
    with serve(*OPTIONS, env=FAST) as server:
        check_ends(Session(server, cold, models, model, GATE_OFF))


def check_ends(session: Session) -> None:
    """The last end of a message that an earlier prompt has too is found, or more."""
    talk(session)
    assert session.found == [max(pair) for pair in zip(session.found, session.ends, strict=True)], session.ends


def test_a_session_that_is_quantized(models: dict[str, Path]) -> None:
    with serve(*COLD, *QUANTIZED, env=FAST) as alone, serve(*OPTIONS, *QUANTIZED, env=FAST) as server:
        check_ends(Session(server, Reference(alone), models, "lfm2", {}))


@pytest.mark.parametrize("model", ["gemma3_text", "qwen3_next"])
def test_a_session_with_a_draft_model(cold: Reference, models: dict[str, Path], model: str) -> None:
    """What the draft model has read goes back with what the model has read."""
    with serve(*OPTIONS, "--draft-model", str(models["gemma3_text"]), model=models[model], env=FAST) as server:
        check_ends(Session(server, cold, models, model, {}))


@pytest.mark.parametrize("model", ["qwen3_next", "lfm2"])
def test_without_checkpoints(cold: Reference, models: dict[str, Path], model: str) -> None:
    """As in the release, a prompt goes on from a whole one, or is fed again."""
    with serve(*OFF, env=FAST) as server:
        session = Session(server, cold, models, model, {})
        asked = [message("user", 60, 1)]
        asked += session.ask(asked)
        asked += [message("tool", 60, 2)]
        session.ask(asked)
        session.ask([*asked[:-1], message("tool", 60, 3)])
        asked[0] = {"role": "user", "content": asked[0]["content"][:40]}
        session.ask(asked)
    assert session.found == [0, len(session.known[0]), len(session.known[0]), 0]


FAULTS: list[tuple[Callable[[], None], Body]] = [
    *((fault, {}) for fault in (note_a_token_too_many, go_on_in_the_checkpoint, take_over_all_checkpoints)),
    (take_none_with_drafts, GATE_OFF),
]


@pytest.mark.planted
@pytest.mark.parametrize(("broken", "draft"), FAULTS, indirect=["broken"])
def test_a_wrong_checkpoint_is_found(broken: Server, cold: Reference, models: dict[str, Path], draft: Body) -> None:
    with pytest.raises(AssertionError):
        check_ends(Session(broken, cold, models, "qwen3_next", draft))
