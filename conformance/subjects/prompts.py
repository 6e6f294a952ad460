"""Prompts for the fixture that are the same on every machine."""

from __future__ import annotations

import random
from typing import Any

Message = dict[str, str]
WORDS = (
    "item value count total first last node path line key name size index user order data text row file list result "
    "start end width left right word func code error match state group field type mode flag host port tree"
).split()
NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jane Kai Lea Max Nora Otto Pia Quin Rosa Sam Tess Uma Vic Wes Yara Zoe"
).split()
CITIES = "Oslo Lima Rome Cairo Delhi Paris Tokyo Quito Accra Minsk Turin Porto Sofia Dakar Hanoi Perth".split()

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


def fenced(text: str) -> str:
    return f"```\n{text}\n```"


def chat(*turns: str) -> list[Message]:
    """Alternating user and assistant messages."""
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


Record = dict[str, int | str]
RECORD_CHARS = 86


def records(rng: random.Random, count: int) -> list[Record]:
    ids = rng.sample(range(10, 1000), count)
    return [
        {
            "id": i,
            "name": rng.choice(NAMES) + " " + rng.choice(NAMES),
            "city": rng.choice(CITIES),
            "price": rng.randint(1, 999),
            "type": rng.choice(WORDS),
        }
        for i in ids
    ]


def record_line(record: Record) -> str:
    fields = (f'"{key}": {value}' if isinstance(value, int) else f'"{key}": "{value}"' for key, value in record.items())
    return "{" + ", ".join(fields) + "}"


def json_edit(rng: random.Random, count: int) -> list[Message]:
    """Repeat all records with one value changed everywhere."""
    rows = records(rng, count)
    key, values = rng.choice([("city", CITIES), ("type", WORDS)])
    old = rng.choice(rows)[key]
    new = rng.choice([value for value in values if value != old])
    edited = [row | {key: new} if row[key] == old else row for row in rows]
    answer = "\n".join(map(record_line, edited))
    return chat(f"Change `{old}` to `{new}`.\n" + fenced("\n".join(map(record_line, rows))), fenced(answer))


def json_lookup(rng: random.Random, count: int) -> list[Message]:
    """Look up a few records by id."""
    rows = records(rng, count)
    wanted = rng.sample(rows, min(len(rows), rng.randint(1, 3)))
    ask = "Show record " + " and ".join(str(row["id"]) for row in wanted) + "."
    answer = "\n".join(map(record_line, wanted))
    return chat(f"{ask}\n" + fenced("\n".join(map(record_line, rows))), fenced(answer))


def repeat(text: str) -> list[Message]:
    return chat(f"Repeat this.\n{fenced(text)}", fenced(text))


def tool_call(rng: random.Random, count: int) -> list[Message]:
    """A tool returns records. The answer shows one of them with a new type."""
    rows = records(rng, count)
    row = dict(rng.choice(rows))
    row["type"] = rng.choice(WORDS)
    return [
        {"role": "user", "content": f"Set record {row['id']} to `{row['type']}`."},
        {"role": "tool", "content": "\n".join(map(record_line, rows))},
        {"role": "assistant", "content": fenced(record_line(row))},
    ]


PROMPTS = {
    "rename": chat(f"Change `text` to `node`.\n{fenced(CODE)}"),
    "delete": chat(f"Delete the line `self.cache = None`.\n{fenced(CODE)}"),
    "json": json_edit(random.Random(6), 8)[:-1],
    "lookup": json_lookup(random.Random(6), 8)[:-1],
    "tool": tool_call(random.Random(7), 6)[:-1],
    "quote": chat(f"Quote the sentence that starts with `A timeout of`.\n{fenced(PROSE)}"),
    "echo": repeat(PROSE)[:-1],
    "nothing_to_copy": chat("Write prose.\nThe object keeps"),
}


def ids(tokenizer: Any, name: str) -> list[int]:
    """The tokens of a prompt."""
    tokens: list[int] = tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True)
    return tokens
