"""Requests that follow each other or come together, asked through the adapters that fit, as scripts/judge.sh does.

Each is answered as if it were the only one: as generate_step answers the whole prompt.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import requests
from mlx_lm import load
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from conformance.adapters import FIXTURE, Adapters
from conformance.doors.server.process import TEXT, Server, ServerFailed, serve
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.subjects.tiny import save

pytestmark = pytest.mark.usefixtures("uncompiled")
# The models, and the classes of their caches.
MODELS = {"fixture": ("llama", "KVCache"), "gemma3_text": ("RotatingKVCache",), "qwen3_next": ("ArraysCache",)}
# Models whose layers take no mask.
RECURRENT = ("mamba", "rwkv7", "jamba", "recurrent_gemma")
# After which lengths of the first answer the second request goes on.
LENGTHS = (5, 6, 7, 12)
NEXT = 10
PENALTY = {"repetition_penalty": 1.8, "repetition_context_size": 200}
TEXT_OF_THE_FIXTURE = "total = 0\nfor name, amount in rows:\n    total += amount\nprint(total)"


class Served:
    """A server with one of the models, or how it failed."""

    def __init__(self, model: str, path: str, server: Server) -> None:
        self.model, self.path, self.server = model, path, server

    def prompt(self, n: int) -> str:
        """No two of these share a beginning, and all are longer than a window."""
        letters = string.ascii_letters[n:] + string.ascii_letters[:n]
        if self.model == "fixture":
            return (
                f"{n}.<|user|>Change `total` to `{letters[:3]}`.\n```\n{TEXT_OF_THE_FIXTURE}\n```<|end|><|assistant|>"
            )
        return letters[:20] + letters[3:9] + letters[:7]

    def ask(self, prompt: str, n: int, **fields: Any) -> str:
        body = {"model": self.path, "prompt": prompt, "max_tokens": n, "temperature": 0, **fields}
        try:
            answer = self.server.post(body, TEXT)
        except requests.RequestException as error:
            broken(f"the server gives no answer: {type(error).__name__}")
        if answer.status_code != 200:
            broken(f"the server answers {answer.status_code}: {answer.text[:200]}")
        # Some releases drop the space that an answer begins with.
        return str(answer.json()["choices"][0]["text"]).strip()

    def right(self, prompt: str, n: int, **penalty: Any) -> str:
        """What plain decoding of the whole prompt gives."""
        network, tokenizer = loaded(self.path)
        options = {"max_tokens": n, "logits_processors": make_logits_processors(None, **penalty)}
        steps = generate_step(mx.array(tokenizer.encode(prompt)), network, **options)
        tokens = takewhile(lambda token: token not in tokenizer.eos_token_ids, (int(token) for token, _ in steps))
        return str(tokenizer.decode(list(tokens))).strip()

    def check(self, prompt: str, n: int, what: str, got: str | None = None) -> str:
        text, expected = self.ask(prompt, n) if got is None else got, self.right(prompt, n)
        if text != expected:
            broken(f"{text!r} instead of {expected!r}, {what}", f"prompt: {prompt!r}")
        return text


@cache
def loaded(path: str) -> Any:
    return load(path)


@pytest.fixture(scope="module", params=[(model, how) for model in MODELS for how in ("plain", "drafted")], ids="-".join)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served | str]:
    model, how = request.param
    if model != "fixture" and find_spec(f"mlx_lm.models.{model}") is None:
        not_offered(f"the tree has no mlx_lm.models.{model}")
    options = request.getfixturevalue("adapter").commands.get("server")
    if how == "drafted" and not options:
        not_offered("the adapter has nothing that turns drafting on in a server")
    path = FIXTURE if model == "fixture" else str(save(model, Path(tmp_path_factory.mktemp("served"))))
    chosen = [path if option == FIXTURE else option for option in options or ()] if how == "drafted" else []
    try:
        with serve(*chosen, model=path) as server:
            yield Served(model, path, server)
    except ServerFailed as error:
        yield f"the server fails: {str(error).strip().splitlines()[-1]}"


@pytest.fixture
def served(started: Served | str, about: Callable[..., None]) -> Served:
    if isinstance(started, str):
        broken(started)
    about(started.model, *MODELS[started.model])
    return started


def test_prefixes(served: Served, adapter: Adapters) -> None:
    """A request that goes on from an answer is answered as if nothing were cached."""
    for n in LENGTHS:
        prompt = served.prompt(n)
        prompt += served.ask(prompt, n) + "abc"
        served.check(prompt, NEXT, f"in what follows an answer of {n} tokens")


def test_one_prompt_twice(served: Served, adapter: Adapters) -> None:
    """The second time the whole prompt is cached."""
    for time in ("the first", "the second", "the third"):
        served.check(f"{served.prompt(20)}total", NEXT, f"{time} time that the prompt is sent")


def test_seeds(served: Served, adapter: Adapters) -> None:
    """A seed gives its text again, and another seed another text.

    At a temperature of 1 drafts are accepted, but most seeds give the same text. At 2 it is the other way round.
    """
    for temperature in (1.0, 2.0):
        texts = [served.ask(served.prompt(21), 24, temperature=temperature, seed=seed) for seed in (1, 1, 2, 3)]
        if texts[0] != texts[1]:
            broken(f"seed 1 gives {texts[0]!r}, then {texts[1]!r}")
    if len(set(texts)) == 1:
        broken(f"the seeds 1, 2 and 3 all give {texts[0]!r}")


def test_a_penalty_on_a_cached_prompt(served: Served, adapter: Adapters) -> None:
    """Processors are shown the part of the prompt that was cached too."""
    prompt = served.prompt(22)
    prompt += served.ask(prompt, NEXT) + "abc"
    served.ask(prompt, 1)
    text, right = served.ask(prompt, NEXT, **PENALTY), served.right(prompt, NEXT, **PENALTY)
    if right == served.right(prompt, NEXT):
        not_shown("the penalty does not change the text")
    if text != right:
        broken(f"{text!r} instead of {right!r}, with a penalty on a prompt that was cached", f"prompt: {prompt!r}")


def check_clients(served: Served, wanted: list[tuple[str, int]]) -> None:
    """Clients whose answers are long enough that they are in one batch: each gets what it gets alone."""
    with ThreadPoolExecutor(len(wanted)) as clients:
        texts = list(clients.map(lambda one: served.ask(*one), wanted))
    for (prompt, n), text in zip(wanted, texts, strict=True):
        served.check(prompt, n, "with other clients at once", text)


@pytest.mark.contract("C10")
def test_clients_at_once(served: Served, adapter: Adapters) -> None:
    check_clients(served, [(served.prompt(23), 96), (served.prompt(24)[5:], 40), (served.prompt(25), 72)])


@pytest.mark.contract("C10")
@pytest.mark.parametrize("model", RECURRENT)
def test_clients_of_a_recurrent_model(
    model: str, adapter: Adapters, about: Callable[..., None], tmp_path: Path
) -> None:
    about(model, "ArraysCache")
    if find_spec(f"mlx_lm.models.{model}") is None:
        not_offered(f"the tree has no mlx_lm.models.{model}")
    path = str(save(model, tmp_path))
    with serve(model=path) as server:
        served = Served(model, path, server)
        prompts = [served.prompt(n)[: 3 * n] for n in range(1, 13)]
        # Some have a part of their prompt in the cache, which others then go on from.
        for prompt in prompts[::4]:
            served.check(prompt[:6], 4, "alone")
        check_clients(served, [(prompt, 24) for prompt in prompts])
