"""The options and fields that turn drafting on, asked through the adapters that fit, as scripts/judge.sh does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters import FIXTURE, Adapters
from conformance.judging.ask import broken, not_offered
from conformance.judging.blocks import drafted, environment
from conformance.testing.server.process import TEXT, ServerFailed, serve

LENGTH, TIMEOUT = 48, 120
# It repeats itself, so that whatever looks up n-grams finds some.
CODE = "total = 0\nfor name, amount in rows:\n    total += amount\nprint(total)"
QUESTION = f"Change `total` to `count`.\n```\n{CODE}\n```"
PROMPT = f"<|user|>{QUESTION}<|end|><|assistant|>"


def run(command: str, options: list[str], typed: str = "") -> tuple[str, int]:
    """What a command prints, and how many blocks of drafts its model was fed."""
    line = [sys.executable, "-m", "mlx_lm", command, "--model", FIXTURE, "--max-tokens", str(LENGTH), *options]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **environment(Path(folder))}
        done = subprocess.run(line, env=env, input=typed, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode:
            said = [text for text in done.stderr.splitlines() if text.strip()]
            broken(f"it ends with {done.returncode}: {said[-1] if said else 'nothing is said'}", shown(line))
        return done.stdout, drafted(Path(folder))


def shown(line: list[str]) -> str:
    return f"HF_HUB_OFFLINE=1 {shlex.join(line)}"


@cache
def generated(*options: str) -> tuple[str, int]:
    text, blocks = run("generate", ["--prompt", QUESTION, "--temp", "0", *options])
    parts = text.split("==========")
    return (parts[1] if len(parts) > 1 else text).strip(), blocks


def generate(options: list[str]) -> None:
    text, blocks = generated(*options)
    line = shown([sys.executable, "-m", "mlx_lm", "generate", "--model", FIXTURE, "--prompt", QUESTION, *options])
    if text != generated()[0]:
        broken("another text than without the options", line)
    if not blocks:
        broken(f"{' '.join(options)} is taken and does nothing: no block of drafts is fed", line)


def chat(options: list[str]) -> None:
    # The second answer is the first one again, whatever the first one was.
    question = QUESTION.replace("\n", " ")
    said = f"{question}\n{question}\nq\n"
    _, blocks = run("chat", ["--temp", "0", *options], said)
    if not blocks:
        broken(f"{' '.join(options)} is taken and does nothing: no block of drafts is fed")


@cache
def served(*options: str, **fields: Any) -> tuple[str, int]:
    """The answer of a server to one request."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with serve(*options, env=environment(Path(folder))) as server:
                body = {"model": FIXTURE, "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, **fields}
                answer = server.post(body, TEXT)
        except ServerFailed as error:
            broken(f"the server fails: {str(error).strip().splitlines()[-1]}")
        if answer.status_code != 200:
            broken(f"the server answers {answer.status_code}: {answer.text[:200]}")
        return answer.json()["choices"][0]["text"], drafted(Path(folder))


def server(options: list[str], **fields: Any) -> None:
    text, blocks = served(*options, **fields)
    what = " ".join(options) or str(fields)
    if text != served()[0]:
        broken(f"another text than without {what}")
    if not blocks:
        broken(f"{what} is taken and does nothing: no block of drafts is fed")


@pytest.fixture(autouse=True)
def rests_on(about: Callable[..., None]) -> None:
    about("fixture", "llama", "KVCache")


def test_options(command: str, adapter: Adapters) -> None:
    """With the options the model is fed blocks, and the text is the same."""
    options, name = adapter.commands.get(command), command.split(",")[0]
    if not options:
        not_offered(f"the adapter has nothing that turns drafting on in {command}")
    {"generate": generate, "chat": chat, "server": server}[name](options)


@pytest.mark.contract("server")
def test_request(adapter: Adapters) -> None:
    """With the fields a server feeds blocks, and the text is the same."""
    if not adapter.request:
        not_offered("the adapter has nothing that turns drafting on in a request")
    server([], **adapter.request)
