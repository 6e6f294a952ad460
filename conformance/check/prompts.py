"""The prompts that ``check`` decodes: three classes of text that an answer repeats, at two lengths, a question and a
conversation; or a user's own."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.subjects.prompts import CODE, PROSE, Message, chat, fenced, json_lookup, repeat

NAMES = ("settings", "options", "headers")
# What a passage and code show, and how many records there are. The windows of many models end within a long prompt.
LENGTHS = {
    "short": (PROSE, CODE, 8),
    "long": ("\n".join([CODE, PROSE] * 2), "\n".join(CODE.replace("settings", name) for name in NAMES), 30),
}


def built_in() -> dict[str, list[Message]]:
    prompts = {}
    for length, (passage, code, n_records) in LENGTHS.items():
        prompts[f"passage, {length}"] = repeat(passage)[:-1]
        prompts[f"code, {length}"] = chat(f"Change `text` to `node`.\n{fenced(code)}")
        prompts[f"json_rag, {length}"] = json_lookup(random.Random(6), n_records)[:-1]
    prompts["question"] = chat("What is the capital of France, and what is it known for?")
    turns = fenced(CODE.replace("text", "node")), "Change `path` to `file`."
    prompts["conversation"] = chat(f"Change `text` to `node`.\n{fenced(CODE)}", *turns)
    return prompts


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
    with suppress(json.JSONDecodeError):
        # A number is text as well.
        if isinstance(found := json.loads(line), str):
            return found
    return line


def encode(tokenizer: Any, messages: list[Message]) -> tuple[int, ...]:
    """With the chat template of the model, if it has one."""
    if getattr(tokenizer, "chat_template", None) is None:
        return tuple(tokenizer.encode(messages[-1]["content"]))
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
