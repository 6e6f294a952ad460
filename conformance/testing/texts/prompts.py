"""Prompts for the fixture that are the same on every machine."""

from __future__ import annotations

import random
from typing import Any

from conformance.testing.texts.workloads import Message, chat, fenced, json_edit, json_lookup, repeat, tool_call

CODE = '''\
def read_settings(path, strict=True):
    """Read the settings of one file, a pair on each line."""
    table = {}
    with open(path) as source:
        for number, text in enumerate(source):
            text = text.strip()
            if not text or text.startswith("#"):
                continue
            if "=" not in text:
                if strict:
                    raise ValueError("no value at %d" % number)
                continue
            key, value = text.split("=", 1)
            table[key.strip()] = value.strip()
    return table
class Settings:
    def __init__(self, path):
        self.path = path
        self.cache = None
    def lookup(self, key, default=None):
        """Return the value that belongs to the key."""
        if self.cache is None:
            self.cache = read_settings(self.path)
        return self.cache.get(key, default)'''

PROSE = (
    "Return the number of bytes that were read. If the stream is at its end, the result is zero and the buffer is left "
    "as it was. A timeout of zero means that the call returns at once, even when no data is there. Other threads may "
    "use the object at the same time: each call takes the lock, and the order of the calls is not defined."
)


def rename() -> list[Message]:
    return chat(f"Change `text` to `node`.\n{fenced(CODE)}")


def delete() -> list[Message]:
    return chat(f"Delete the line `self.cache = None`.\n{fenced(CODE)}")


def json() -> list[Message]:
    return json_edit(random.Random(6), 8)[:-1]


def lookup() -> list[Message]:
    return json_lookup(random.Random(6), 8)[:-1]


def tool() -> list[Message]:
    return tool_call(random.Random(7), 6)[:-1]


def quote() -> list[Message]:
    return chat(f"Quote the sentence that starts with `A timeout of`.\n{fenced(PROSE)}")


def echo() -> list[Message]:
    return repeat(PROSE)[:-1]


def nothing_to_copy() -> list[Message]:
    return chat("Write prose.\nThe object keeps")


PROMPTS = {make.__name__: make() for make in (rename, delete, json, lookup, tool, quote, echo, nothing_to_copy)}


def ids(tokenizer: Any, name: str) -> list[int]:
    """The tokens of a prompt."""
    tokens: list[int] = tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True)
    return tokens
