"""The commands as users type them: with drafts they give the same text.

The options and fields that turn drafting on are those of an adapter, so that any tree is asked.
"""

from __future__ import annotations

import importlib
import io
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from mlx_lm.models import llama

from conformance import FIXTURE, first_line
from conformance.adapters import Adapters
from conformance.doors.server.process import ServerFailed, inside
from conformance.doors.server.requests import asked
from conformance.oracle.findings import broken, not_offered

pytestmark = pytest.mark.usefixtures("uncompiled")
LENGTH = 48
# It repeats itself, so that whatever looks up n-grams finds some.
QUESTION = (
    "Change `total` to `count`.\n```\ntotal = 0\nfor name, amount in rows:\n    total += amount\nprint(total)\n```"
)
PROMPT = f"<|user|>{QUESTION}<|end|><|assistant|>"
# A block that verifies a draft; a chunk of a prompt is longer here, and a step is one token.
DRAFTED = range(2, 20)


def command_line(command: str, options: Sequence[str]) -> list[str]:
    prompt = ["--prompt", QUESTION] if command == "generate" else []
    return [command, "--model", str(FIXTURE), "--max-tokens", str(LENGTH), "--temp", "0", *prompt, *options]


def shown(command: str, options: Sequence[str]) -> str:
    line = [sys.executable, "-m", "mlx_lm", *command_line(command, options)]
    return "" if command == "server" else f"HF_HUB_OFFLINE=1 {shlex.join(line)}"


@contextmanager
def blocks() -> Iterator[list[int]]:
    """How many tokens the fixture's model is fed at a time."""
    found, call = list[int](), llama.Model.__call__

    def noted(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(inputs.shape[-1])
        return call(self, inputs, *args, **kwargs)

    with patch.object(llama.Model, "__call__", noted):
        yield found


def answer_of(command: str, options: Sequence[str]) -> str:
    """The answer of a command that ends well. In a chat the second one is the first one again, whatever that was."""
    question, printed = QUESTION.replace("\n", " "), io.StringIO()
    typed = patch("builtins.input", side_effect=[question, question, "q"])
    argv = patch.object(sys, "argv", command_line(command, options))
    try:
        with typed, argv, redirect_stdout(printed), redirect_stderr(printed):
            importlib.import_module(f"mlx_lm.{command}").main()
    except SystemExit as ended:
        if ended.code:
            said = printed.getvalue().splitlines()
            broken(f"it ends with {ended.code}: {said[-1] if said else 'nothing is said'}", shown(command, options))
    except Exception as error:
        broken(f"it ends with {first_line(error)}", shown(command, options))
    parts = printed.getvalue().split("==========")
    return (parts[1] if len(parts) > 1 else parts[0]).strip()


@cache
def told(command: str, *options: str, **fields: Any) -> tuple[str, int]:
    """An answer, and how many blocks the model was fed for it that may have held a draft."""
    with blocks() as lengths:
        if command != "server":
            text = answer_of(command, options)
        else:
            try:
                with inside(*options) as server:
                    body = {"model": str(FIXTURE), "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, **fields}
                    text = asked(server, body).text
            except ServerFailed as error:
                broken(f"the server fails: {str(error).strip().splitlines()[-1]}")
    return text, sum(n in DRAFTED for n in lengths)


def check(command: str, options: Sequence[str], **fields: Any) -> None:
    """With the options or fields the model is fed blocks, and the text is the same."""
    text, n_blocks = told(command, *options, **fields)
    what, line = " ".join(options) or str(fields), shown(command, options)
    # What a chat prints has times.
    if command != "chat" and text != told(command)[0]:
        broken(f"another text than without {what}", line)
    if not n_blocks:
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
