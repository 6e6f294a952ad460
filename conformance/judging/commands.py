"""C6 of the commands: the options that turn drafting on do so, and the text stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from conformance.adapters import FIXTURE, Adapter
from conformance.judging.blocks import drafted, environment
from conformance.judging.cases import Broken, Case, NotOffered
from conformance.testing.server.process import TEXT, ServerFailed, serve

OPTIONS, REQUESTS = "C6 options", "C6 requests"
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
            raise Broken(f"it ends with {done.returncode}: {said[-1] if said else 'nothing is said'}", shown(line))
        return done.stdout, drafted(Path(folder))


def shown(line: list[str]) -> str:
    return " ".join(["python", *(f"'{part}'" if {" ", "\n", "`"} & set(part) else part for part in line[1:])])


@cache
def generated(*options: str) -> tuple[str, int]:
    text, blocks = run("generate", ["--prompt", QUESTION, "--temp", "0", *options])
    parts = text.split("==========")
    return (parts[1] if len(parts) > 1 else text).strip(), blocks


def generate(options: list[str]) -> None:
    text, blocks = generated(*options)
    line = shown(["", "-m", "mlx_lm", "generate", "--model", FIXTURE, "--prompt", QUESTION, *options])
    if text != generated()[0]:
        raise Broken("another text than without the options", line)
    if not blocks:
        raise Broken(f"{' '.join(options)} is taken and does nothing: no block of drafts is fed", line)


def chat(options: list[str]) -> None:
    # The second answer is the first one again, whatever the first one was.
    question = QUESTION.replace("\n", " ")
    said = f"{question}\n{question}\nq\n"
    _, blocks = run("chat", ["--temp", "0", *options], said)
    if not blocks:
        raise Broken(f"{' '.join(options)} is taken and does nothing: no block of drafts is fed")


@cache
def served(*options: str, **fields: Any) -> tuple[str, int]:
    """The answer of a server to one request."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with serve(*options, env=environment(Path(folder))) as server:
                body = {"model": FIXTURE, "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, **fields}
                answer = server.post(body, TEXT)
        except ServerFailed as error:
            raise Broken(f"the server fails: {str(error).strip().splitlines()[-1]}") from error
        if answer.status_code != 200:
            raise Broken(f"the server answers {answer.status_code}: {answer.text[:200]}")
        return answer.json()["choices"][0]["text"], drafted(Path(folder))


def server(options: list[str], fields: dict[str, Any]) -> None:
    text, blocks = served(*options, **fields)
    what = " ".join(options) or str(fields)
    if text != served()[0]:
        raise Broken(f"another text than without {what}")
    if not blocks:
        raise Broken(f"{what} is taken and does nothing: no block of drafts is fed")


def not_offered(what: str) -> None:
    raise NotOffered(f"the adapter has nothing that turns drafting on in {what}")


def cases(adapter: Adapter) -> Iterator[Case]:
    # The fixture's caches; its decoding is that of the model llama.
    rests = tuple(f"{contract}: KVCache" for contract in ("C4 blocks", "C2 trim", "C1 snapshot"))
    rests += tuple(f"C4 parity: llama, {drafter} drafts, a prompt of 21" for drafter in adapter.drafters)
    commands = {name: adapter.commands.get(name) for name in ("generate", "chat", "server")} | adapter.commands
    for name, options in commands.items():
        command = name.split(",")[0]
        if not options:
            yield Case(OPTIONS, name, partial(not_offered, name))
        elif command == "server":
            yield Case(OPTIONS, name, partial(server, options, {}), rests)
        else:
            ask = {"generate": generate, "chat": chat}[command]
            yield Case(OPTIONS, name, partial(ask, options), rests)
    if adapter.request:
        yield Case(REQUESTS, "server", partial(server, [], adapter.request), rests)
    else:
        yield Case(REQUESTS, "server", partial(not_offered, "a request"))
