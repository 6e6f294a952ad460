"""The prompts that ``check`` decodes: three classes of text that an answer repeats, at two lengths, or a user's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from conformance.testing.texts.workloads import RECORD_CHARS, Message, chat, fenced, record_line, records, repeat

# About how many characters of text a prompt shows.
LENGTHS = {"short": 600, "long": 2400}
SUBJECTS = "The parser|A reader|The first call|Each worker|The server|A lock|The second pass|The table".split("|")
VERBS = "returns|keeps|skips|counts|checks|writes|moves|opens".split("|")
OBJECTS = "the last line|a list of names|every open file|the size of the text|one key at a time|the old value".split(
    "|"
)
ENDS = "before it stops|when the input is empty|unless a mode is set|after the next call|in the same order".split("|")
FUNCTION = '''\
def {name}(self, {old}, limit={number}):
    """Return the {old} that belongs to the {other}."""
    if {old} is None:
        raise ValueError("no {old} for %d" % limit)
    {other} = self.{other}.get({old}, {number})
    for index in range(limit):
        {other} = {other} + {old}[index]
    self.{other}_{number} = {other}
    return {old}, {other}'''


def passage(rng: random.Random, chars: int) -> list[Message]:
    """A text to repeat."""
    text = ""
    while len(text) < chars:
        text += " ".join([rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS), rng.choice(ENDS)]) + ". "
    return repeat(text.strip())[:-1]


def code(rng: random.Random, chars: int) -> list[Message]:
    """Functions, with a name to change."""
    old, new = "text", "node"
    functions: list[str] = []
    while len("\n".join(functions)) < chars:
        name, other = f"{rng.choice(VERBS)}_{rng.randrange(10, 100)}", rng.choice("item value key row group".split())
        functions.append(FUNCTION.format(name=name, old=old, other=other, number=rng.randrange(2, 99)))
    return chat(f"Change `{old}` to `{new}`.\n" + fenced("\n".join(functions)))


def json_rag(rng: random.Random, chars: int) -> list[Message]:
    """Records, a few of which the answer shows."""
    rows = records(rng, max(4, chars // RECORD_CHARS))
    wanted = sorted(rng.sample(range(len(rows)), 3))
    ask = "Show record " + " and ".join(str(rows[i]["id"]) for i in wanted) + "."
    return chat(f"{ask}\n" + fenced("\n".join(map(record_line, rows))))


CLASSES = {"passage": passage, "code": code, "json_rag": json_rag}


def built_in() -> dict[str, list[Message]]:
    return {
        f"{name}, {length}": make(random.Random(f"{name} {length}"), chars)
        for name, make in CLASSES.items()
        for length, chars in LENGTHS.items()
    }


class Unusable(Exception):
    """What the user named cannot be used."""


def from_file(path: Path) -> dict[str, list[Message]]:
    """A prompt a line: a JSON string, in which a line may be broken with a backslash and an n, or the text as it is."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path} cannot be read: {error}") from error
    prompts = {f"line {number}": chat(text_of(line)) for number, line in enumerate(lines, 1) if line.strip()}
    if not prompts:
        raise Unusable(f"{path} holds no prompt: write one a line.")
    return prompts


def text_of(line: str) -> str:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return line
    # A number is text as well.
    return found if isinstance(found, str) else line


def encode(tokenizer: Any, messages: list[Message]) -> tuple[int, ...]:
    """With the chat template of the model, if it has one."""
    if getattr(tokenizer, "chat_template", None) is None:
        return tuple(tokenizer.encode(messages[-1]["content"]))
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
