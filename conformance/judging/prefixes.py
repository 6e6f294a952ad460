"""C3 of the server: a request that goes on from an earlier one is answered as if nothing had been cached."""

from __future__ import annotations

import string
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import generate_step

from conformance.adapters import FIXTURE, Adapter
from conformance.judging.cases import Broken, Case, NotOffered
from conformance.judging.commands import PROMPT, not_offered
from conformance.testing.models.tiny import save
from conformance.testing.server.process import TEXT, Server, ServerFailed, serve

PREFIXES = "C3 server prefixes"
MODELS = ("fixture", "gemma3_text", "qwen3_next")
# After which lengths of the first answer the second request goes on.
LENGTHS = (5, 6, 7, 12)
NEXT = 10
FOLDER = tempfile.TemporaryDirectory()


@cache
def path_of(model: str) -> str:
    if model == "fixture":
        return FIXTURE
    if find_spec(f"mlx_lm.models.{model}") is None:
        raise NotOffered(f"the tree has no mlx_lm.models.{model}")
    return str(save(model, Path(FOLDER.name)))


def prompt_of(model: str, n: int) -> str:
    """No two of these share a beginning, and all are longer than a window."""
    letters = string.ascii_letters[n:] + string.ascii_letters[:n]
    return f"{n}.{PROMPT}" if model == "fixture" else letters[:20] + letters[3:9] + letters[:7]


@cache
def loaded(model: str) -> Any:
    return load(path_of(model))


def right(model: str, prompt: str, n: int) -> str:
    """What plain decoding of the whole prompt gives."""
    network, tokenizer = loaded(model)
    steps = generate_step(mx.array(tokenizer.encode(prompt)), network, max_tokens=n)
    return str(tokenizer.decode([int(token) for token, _ in steps]))


@cache
def answers(model: str, options: tuple[str, ...]) -> dict[int, tuple[str, str]] | str:
    """For each length, the second answer of one server and what it should be; or how the server failed."""
    path, found = path_of(model), {}
    try:
        with serve(*(path if option == FIXTURE else option for option in options), model=path) as server:
            for n in LENGTHS:
                first = completion(server, path, prompt := prompt_of(model, n), n)
                prompt += first + "abc"
                found[n] = completion(server, path, prompt, NEXT), right(model, prompt, NEXT)
    except (ServerFailed, OSError) as error:
        said = str(error).strip().splitlines()
        return f"the server fails: {said[-1] if said else type(error).__name__}"
    return found


def completion(server: Server, path: str, prompt: str, n: int) -> str:
    answer = server.post({"model": path, "prompt": prompt, "max_tokens": n, "temperature": 0}, TEXT)
    if answer.status_code != 200:
        raise ServerFailed(f"it answers {answer.status_code}, {answer.text[:200]}")
    return str(answer.json()["choices"][0]["text"])


def ask(model: str, options: tuple[str, ...], n: int) -> None:
    found = answers(model, options)
    if isinstance(found, str):
        raise Broken(found)
    text, expected = found[n]
    # Some releases drop the space that an answer begins with.
    if text.strip() != expected.strip():
        raise Broken(f"{text!r} instead of {expected!r}, in what follows an answer of {n} tokens", LINES)


LINES = """\
# python -m mlx_lm server --model MODEL, then twice, the second time with the answer and "abc" after the prompt:
# curl localhost:8080/v1/completions -d '{"prompt": PROMPT, "max_tokens": N, "temperature": 0}'"""


def cases(adapter: Adapter) -> Iterator[Case]:
    drafting = adapter.commands.get("server")
    for model in MODELS:
        kinds = {"fixture": "KVCache", "gemma3_text": "RotatingKVCache", "qwen3_next": "ArraysCache"}
        rests = [f"{contract}: {kinds[model]}" for contract in ("C4 blocks", "C2 trim", "C1 snapshot")]
        family = "llama" if model == "fixture" else model
        rests += [f"{contract}: the model {family}" for contract in ("C2 trim", "C1 snapshot")]
        lengths = {"fixture": 21, "gemma3_text": 27, "qwen3_next": 21}
        decodes = [f"{family}, {drafter} drafts" for drafter in adapter.drafters]
        drafted = [f"C4 parity: {one}, a prompt of {lengths[model]}" for one in decodes]
        drafted += [f"C3 exits: {one}, a limit of {n}" for one in decodes for n in (1, 4, 5, 6, 7, 11)]
        for n in LENGTHS:
            about = f"{model}, after {n} tokens"
            yield Case(PREFIXES, about, partial(ask, model, (), n), tuple(rests), n)
            if drafting:
                bound = partial(ask, model, tuple(drafting), n)
                yield Case(PREFIXES, f"{about}, drafted", bound, (*rests, *drafted), n)
            elif n == LENGTHS[0]:
                yield Case(PREFIXES, f"{about}, drafted", partial(not_offered, "a server"))
