"""Requests that follow each other or come together, to the server of any tree.

Each is answered as if it were the only one: as the library decodes the whole prompt.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters import FIXTURE, Adapters
from conformance.doors.server.process import Body, Client, ServerFailed, serve
from conformance.doors.server.requests import Answer, Right, asked
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.subjects.tiny import save

# The models, and the classes of their caches.
MODELS = {"fixture": ("llama", "KVCache"), "gemma3_text": ("RotatingKVCache",), "qwen3_next": ("ArraysCache",)}
# After which lengths of the first answer the second request goes on.
LENGTHS = (5, 6, 12)
NEXT = 10
PENALTY: dict[str, Any] = {"repetition_penalty": 1.8, "repetition_context_size": 200}
TEXT_OF_THE_FIXTURE = "total = 0\nfor name, amount in rows:\n    total += amount\nprint(total)"
RIGHT = Right()


@dataclass
class Served:
    """A server with one of the models, or why there is none."""

    model: str
    path: str
    server: Client | str

    def prompt(self, n: int) -> str:
        """No two of these share a beginning, and all are longer than a window."""
        letters = string.ascii_letters[n:] + string.ascii_letters[:n]
        if self.model != "fixture":
            return letters[:20] + letters[3:9] + letters[:7]
        return f"{n}.<|user|>Change `total` to `{letters[:3]}`.\n```\n{TEXT_OF_THE_FIXTURE}\n```<|end|><|assistant|>"

    def request(self, prompt: str, n: int, **fields: Any) -> Body:
        return {"model": self.path, "prompt": prompt, "max_tokens": n, "temperature": 0, **fields}

    def answer(self, prompt: str, n: int, **fields: Any) -> Answer:
        if isinstance(self.server, str):
            broken(f"the server fails: {self.server}")
        return asked(self.server, self.request(prompt, n, **fields))

    def ask(self, prompt: str, n: int, **fields: Any) -> str:
        # Some releases drop the space that an answer begins with.
        return self.answer(prompt, n, **fields).text.strip()

    def right(self, prompt: str, n: int, **fields: Any) -> Answer:
        return RIGHT(self.request(prompt, n, **fields))

    def check(self, what: str, prompt: str, n: int, got: Answer | None = None, **fields: Any) -> None:
        answer, right = got or self.answer(prompt, n, **fields), self.right(prompt, n, **fields)
        lines = f"prompt: {prompt!r}"
        if (text := answer.text.strip()) != (expected := right.text.strip()):
            # Which clients meet in a batch, and what a wrong one gets, is another one each time.
            broken(f"{text!r} instead of {expected!r}, {what}", lines, {what: "another text"} if got else None)
        if answer.counts != right.counts:
            broken(f"the usage counts {answer.counts} instead of {right.counts}, {what}", lines)


@contextmanager
def start(model: str, folder: Path, *options: str) -> Iterator[Served]:
    if model != "fixture" and find_spec(f"mlx_lm.models.{model}") is None:
        not_offered(f"the tree has no mlx_lm.models.{model}")
    path = FIXTURE if model == "fixture" else str(save(model, folder))
    server: Client | str
    with ExitStack() as stack:
        try:
            words = (path if option == FIXTURE else option for option in options)
            server = stack.enter_context(serve(*words, model=path))
        except ServerFailed as error:
            server = str(error).strip().splitlines()[-1]
        yield Served(model, path, server)


@pytest.fixture(scope="module", params=[(model, how) for model in MODELS for how in ("plain", "drafted")], ids="-".join)
def started(
    request: pytest.FixtureRequest, adapter: Adapters, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    model, how = request.param
    options = adapter.commands.get("server") if how == "drafted" else []
    if options is None:
        not_offered("the adapter has nothing that turns drafting on in a server")
    with start(model, Path(tmp_path_factory.mktemp("served")), *options) as served:
        yield served


@pytest.fixture
def served(started: Served, about: Callable[..., None]) -> Served:
    about(started.model, *MODELS[started.model])
    return started


@pytest.mark.asked("C3 server prefixes")
def test_prefixes(served: Served) -> None:
    """A request that goes on from an answer is answered as if nothing were cached."""
    for n in LENGTHS:
        prompt = served.prompt(n)
        prompt += served.ask(prompt, n) + "abc"
        served.check(f"in what follows an answer of {n} tokens", prompt, NEXT)


@pytest.mark.asked("C3 server prefixes")
def test_one_prompt_twice(served: Served) -> None:
    """The second time the whole prompt is cached, and the third time the answer is streamed."""
    for time in ("first", "second", "third"):
        prompt, streamed = f"{served.prompt(20)}total", time == "third"
        served.check(f"the {time} time that the prompt is sent", prompt, NEXT, stream=streamed)


@pytest.mark.asked("C4 server seeds")
def test_seeds(served: Served) -> None:
    """A seed gives its text again, and another seed another text.

    At a temperature of 1 drafts are accepted, but most seeds give the same text. At 2 it is the other way round.
    """
    for temperature in (1.0, 2.0):
        texts = [served.ask(served.prompt(21), 24, temperature=temperature, seed=seed) for seed in (1, 1, 2, 3)]
        if texts[0] != texts[1]:
            broken(f"seed 1 gives {texts[0]!r}, then {texts[1]!r}")
    if len(set(texts)) == 1:
        broken(f"the seeds 1, 2 and 3 all give {texts[0]!r}")


@pytest.mark.asked("C5 server processors")
def test_a_penalty_on_a_cached_prompt(served: Served) -> None:
    """Processors are shown the part of the prompt that was cached too."""
    prompt = served.prompt(22)
    prompt += served.ask(prompt, NEXT) + "abc"
    served.ask(prompt, 1)
    if served.right(prompt, NEXT).text == served.right(prompt, NEXT, **PENALTY).text:
        not_shown("the penalty does not change the text")
    served.check("with a penalty on a prompt that was cached", prompt, NEXT, **PENALTY)


@pytest.mark.asked("C10 server clients")
@pytest.mark.contract("C10")
def test_clients_at_once(served: Served) -> None:
    """Their answers are long enough that they are in one batch: each gets what it gets alone."""
    wanted = [(served.prompt(23), 64), (served.prompt(24)[5:], 30), (served.prompt(25), 48)]
    with ThreadPoolExecutor(len(wanted)) as clients:
        answers = list(clients.map(lambda one: served.answer(*one), wanted))
    for (prompt, n), answer in zip(wanted, answers, strict=True):
        served.check("with other clients at once", prompt, n, answer)
