"""The options and fields that turn drafting on, asked through the adapters that fit, as scripts/judge.sh does."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters import FIXTURE, Adapters
from conformance.doors.programs import run
from conformance.doors.server.process import TEXT, ServerFailed, serve
from conformance.judging.blocks import drafted, environment
from conformance.oracle.findings import broken, not_offered

LENGTH, TIMEOUT = 48, 120
# It repeats itself, so that whatever looks up n-grams finds some.
CODE = "total = 0\nfor name, amount in rows:\n    total += amount\nprint(total)"
QUESTION = f"Change `total` to `count`.\n```\n{CODE}\n```"
PROMPT = f"<|user|>{QUESTION}<|end|><|assistant|>"


def shown(line: Sequence[str]) -> str:
    return f"HF_HUB_OFFLINE=1 {shlex.join([sys.executable, *line])}"


def command_line(command: str, options: Sequence[str]) -> list[str]:
    prompt = ["--prompt", QUESTION] if command == "generate" else []
    always = ["--model", FIXTURE, "--max-tokens", str(LENGTH), "--temp", "0"]
    return ["-m", "mlx_lm", command, *always, *prompt, *options]


def printed(command: str, options: Sequence[str], env: dict[str, str]) -> str:
    """What a command prints as its answer."""
    line, question = command_line(command, options), QUESTION.replace("\n", " ")
    # The second answer is the first one again, whatever the first one was.
    typed = f"{question}\n{question}\nq\n" if command == "chat" else ""
    done = run(line, env=env, typed=typed, timeout=TIMEOUT)
    if done.returncode:
        said = [text for text in done.stderr.splitlines() if text.strip()]
        broken(f"it ends with {done.returncode}: {said[-1] if said else 'nothing is said'}", shown(line))
    parts = done.stdout.split("==========")
    return (parts[1] if len(parts) > 1 else done.stdout).strip()


def answered(options: Sequence[str], fields: dict[str, Any], env: dict[str, str]) -> str:
    """The answer of a server to one request."""
    try:
        with serve(*options, env=env) as server:
            body = {"model": FIXTURE, "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, **fields}
            answer = server.post(body, TEXT)
    except ServerFailed as error:
        broken(f"the server fails: {str(error).strip().splitlines()[-1]}")
    if answer.status_code != 200:
        broken(f"the server answers {answer.status_code}: {answer.text[:200]}")
    return str(answer.json()["choices"][0]["text"])


@cache
def told(command: str, *options: str, **fields: Any) -> tuple[str, int]:
    """An answer, and how many blocks of drafts the model was fed for it."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder))
        text = answered(options, fields, env) if command == "server" else printed(command, options, env)
        return text, drafted(Path(folder))


def check(command: str, options: Sequence[str], **fields: Any) -> None:
    text, blocks = told(command, *options, **fields)
    what = " ".join(options) or str(fields)
    line = "" if command == "server" else shown(command_line(command, options))
    # What a chat prints has times.
    if command != "chat" and text != told(command)[0]:
        broken(f"another text than without {what}", line)
    if not blocks:
        broken(f"{what} is taken and does nothing: no block of drafts is fed", line)


@pytest.fixture(autouse=True)
def rests_on(about: Callable[..., None]) -> None:
    about("fixture", "llama", "KVCache")


def test_options(command: str, adapter: Adapters) -> None:
    """With the options the model is fed blocks, and the text is the same."""
    options, name = adapter.commands.get(command), command.split(",")[0]
    if not options:
        not_offered(f"the adapter has nothing that turns drafting on in {command}")
    check(name, options)


@pytest.mark.contract("server")
def test_request(adapter: Adapters) -> None:
    """With the fields a server feeds blocks, and the text is the same."""
    if not adapter.request:
        not_offered("the adapter has nothing that turns drafting on in a request")
    check("server", [], **adapter.request)
