"""The commands as users type them: with drafts they give the same text, and more is accepted where more is known.

The options and fields that turn drafting on are those of an adapter, so that any tree is asked.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE
from conformance.adapters import Adapters
from conformance.doors.printed import drafting
from conformance.doors.programs import run
from conformance.doors.server.process import TEXT, ServerFailed, serve
from conformance.judging.blocks import drafted, environment
from conformance.oracle.findings import broken, not_offered
from conformance.subjects.prompts import CODE, PROMPTS, fenced

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
                answer = server.post(body, TEXT)
        except ServerFailed as error:
            broken(f"the server fails: {str(error).strip().splitlines()[-1]}")
        if answer.status_code != 200:
            broken(f"the server answers {answer.status_code}: {answer.text[:200]}")
        return answer.json()["choices"][0]["text"], drafted(Path(folder))


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


MOD = "--draft-type ngram-mod --disable-adaptive-gate"
# Two command lines with the same text: more is accepted in the second one, at least so much of what is drafted, and
# so many tokens for each forward pass.
BETTER = {
    "the short option": ("", "--prompt-lookup-num-tokens 8", 0.0, 1.5),
    # It holds the answer. With short n-grams the prompt alone drafts nearly as well.
    "a text to draft from": (MOD, f"{MOD} --draft-reference edited.md", 0.0, 0.0),
    "a memory in a file": (f"{MOD} --draft-memory memory", f"{MOD} --draft-memory memory", 0.0, 0.0),
    # The draft model reads the cached prompt, and drafts as well as with the whole prompt.
    "a draft model and a cached prompt": (
        "--prompt-cache-file cache.safetensors",
        f"--prompt-cache-file cache.safetensors --draft-model {shlex.quote(str(FIXTURE))}",
        0.9,
        3.0,
    ),
}


@pytest.mark.parametrize("name", BETTER)
def test_more_is_accepted(name: str, tmp_path: Path) -> None:
    (tmp_path / "edited.md").write_text(fenced(CODE.replace("text", "node")))
    if "cached" in name:
        file = ["--prompt-cache-file", "cache.safetensors"]
        # A command that is installed with the package.
        script = shutil.which("mlx_lm.cache_prompt", path=str(Path(sys.executable).parent)) or "mlx_lm.cache_prompt"
        subprocess.run([script, "--model", str(FIXTURE), "--prompt", CODE, *file], cwd=tmp_path, check=True)
    *lines, share, rate = BETTER[name]
    question = ["--prompt", PROMPTS["rename"][0]["content"], "--max-tokens", "120"]
    first, second = (printed(command_line("generate", [*question, *shlex.split(line)]), cwd=tmp_path) for line in lines)
    if answer_of(first) != answer_of(second):
        broken(f"{lines[1]} gives another text than {lines[0] or 'no option'}: {answer_of(second)!r}")
    before, after = drafting(first), drafting(second)
    if before and "draft" not in lines[0]:
        broken(f"{lines[0]!r} drafts: {before}")
    if not after or after.accepted <= (before.accepted if before else 0):
        broken(f"after {lines[0]!r}, {lines[1]!r} accepts no more: {before}, then {after}")
    if after.accepted < share * after.drafted or after.rate < rate:
        broken(f"{lines[1]!r} accepts less than {share:.0%} or has less than {rate} tokens for each pass: {after}")
