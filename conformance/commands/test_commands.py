"""The commands as users type them: with drafts they give the same text.

The options and fields that turn drafting on are those of an adapter, so that any tree is asked.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE
from conformance.adapters import Adapters
from conformance.doors.programs import run
from conformance.doors.server.process import ServerFailed, serve
from conformance.doors.server.requests import asked
from conformance.judging.blocks import drafted, environment
from conformance.oracle.findings import broken, not_offered

LENGTH, TIMEOUT = 48, 120
# It repeats itself, so that whatever looks up n-grams finds some.
QUESTION = (
    "Change `total` to `count`.\n```\ntotal = 0\nfor name, amount in rows:\n    total += amount\nprint(total)\n```"
)
PROMPT = f"<|user|>{QUESTION}<|end|><|assistant|>"


def command_line(command: str, options: Sequence[str]) -> list[str]:
    prompt = ["--prompt", QUESTION] if command == "generate" else []
    always = ["--model", str(FIXTURE), "--max-tokens", str(LENGTH), "--temp", "0"]
    return ["-m", "mlx_lm", command, *always, *prompt, *options]


def shown(line: Sequence[str]) -> str:
    return f"HF_HUB_OFFLINE=1 {shlex.join([sys.executable, *line])}"


def printed(line: list[str], typed: str = "", **how: Any) -> str:
    """What a command prints that ends well."""
    done = run(line, typed=typed, timeout=TIMEOUT, **how)
    if done.returncode:
        said = [text for text in done.stderr.splitlines() if text.strip()]
        broken(f"it ends with {done.returncode}: {said[-1] if said else 'nothing is said'}", shown(line))
    return str(done.stdout)


def answer_of(printed: str) -> str:
    parts = printed.split("==========")
    return (parts[1] if len(parts) > 1 else printed).strip()


@cache
def told(command: str, *options: str, **fields: Any) -> tuple[str, int]:
    """An answer, and how many blocks of drafts the model was fed for it."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder))
        if command != "server":
            question = QUESTION.replace("\n", " ")
            # The second answer is the first one again, whatever the first one was.
            typed = f"{question}\n{question}\nq\n" if command == "chat" else ""
            return answer_of(printed(command_line(command, options), typed, env=env)), drafted(Path(folder))
        try:
            with serve(*options, env=env) as server:
                body = {"model": str(FIXTURE), "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, **fields}
                return asked(server, body), drafted(Path(folder))
        except ServerFailed as error:
            broken(f"the server fails: {str(error).strip().splitlines()[-1]}")


def check(command: str, options: Sequence[str], **fields: Any) -> None:
    """With the options or fields the model is fed blocks, and the text is the same."""
    text, blocks = told(command, *options, **fields)
    what = " ".join(options) or str(fields)
    line = "" if command == "server" else shown(command_line(command, options))
    # What a chat prints has times.
    if command != "chat" and text != told(command)[0]:
        broken(f"another text than without {what}", line)
    if not blocks:
        broken(f"{what} is taken and does nothing: no block of drafts is fed", line)


@pytest.mark.asked("C6 options")
def test_options(command: str, adapter: Adapters, about: Callable[..., None]) -> None:
    about("fixture", "llama", "KVCache")
    options = adapter.commands.get(command)
    if not options:
        not_offered(f"the adapter has nothing that turns drafting on in {command}")
    check(command.split(",")[0], options)


@pytest.mark.asked("C6 requests")
def test_request(adapter: Adapters, about: Callable[..., None]) -> None:
    about("fixture", "llama", "KVCache")
    if not adapter.request:
        not_offered("the adapter has nothing that turns drafting on in a request")
    check("server", [], **adapter.request)
