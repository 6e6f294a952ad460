"""Edits all over a text. A drafter easily loses its place in them, but it can learn the change.

An edit takes a text and returns the edited text. ``draw`` makes a conversation with an edit of a module of the standard
library, of records or of a table.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from conformance.lab.texts.workloads import IDENTIFIER, KEYWORDS, Corpus
from conformance.subjects.prompts import RECORD_CHARS, Message, chat, fenced, record_line, records

Edit = Callable[[random.Random, str], str]
# The approximate length of a table row, in characters.
ROW_CHARS = 40
_SYLLABLES = "ba ce di fo gu ka le mi no pu ra se ti vo xu za".split()


def replacing(*pairs: tuple[str, str]) -> Edit:
    """Replace patterns, in which ^ and $ are the ends of a line."""

    def edit(_: random.Random, text: str) -> str:
        for pattern, new in pairs:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        return text

    return edit


def _name(rng: random.Random) -> str:
    """A new name of several tokens that occurs in no text."""
    return "_".join("".join(rng.choices(_SYLLABLES, k=2)) for _ in range(rng.choice((2, 3))))


def _most_used(rng: random.Random, code: str, count: int, among: int) -> list[str]:
    names = sorted(set(IDENTIFIER.findall(code)) - KEYWORDS)
    names.sort(key=lambda name: -len(re.findall(rf"\b{name}\b", code)))
    return rng.sample(names[:among], min(count, len(names[:among])))


def _rename(rng: random.Random, code: str, names: list[str]) -> str:
    for name in names:
        code = re.sub(rf"\b{name}\b", _name(rng), code)
    return code


def rename_one(rng: random.Random, code: str) -> str:
    return _rename(rng, code, _most_used(rng, code, 1, 4))


def quotes(_: random.Random, code: str) -> str:
    return code.replace("'", '"') if code.count("'") > code.count('"') else code.replace('"', "'")


def called(_: random.Random, code: str) -> str:
    """Call a function as a method of another name, with one more argument."""
    heads = re.findall(r"\b([a-z_]{3,})\(", code)
    name = max(sorted(set(heads)), key=heads.count) if heads else "print"
    return re.sub(rf"(?<!def )\b{name}\(", f"tools.{name}(context, ", code)


def here_and_there(rng: random.Random, code: str) -> str:
    """Replace some lines, and drop others."""
    lines = []
    for line in code.split("\n"):
        chance = rng.random()
        if chance < 0.06:
            lines.append(line[: len(line) - len(line.lstrip())] + f"{_name(rng)} = {rng.randint(0, 99)}")
        elif chance > 0.04 + 0.06:
            lines.append(line)
    return "\n".join(lines)


def column_added(_: random.Random, table: str) -> str:
    head, rule, *rows = table.split("\n")
    return "\n".join([head + " checked |", rule + " --- |", *(row + " no |" for row in rows)])


CODE: dict[str, Edit] = {
    "rename_one": rename_one,
    "rename_four": lambda rng, code: _rename(rng, code, _most_used(rng, code, 4, 10)),
    "indent": replacing(("^(?=.)", "    ")),
    "dedent": replacing(("^    ", "")),
    "tabs": lambda _, code: re.sub("^( {4})+", lambda m: "\t" * (len(m[0]) // 4), code, flags=re.MULTILINE),
    "quotes": quotes,
    # Make attributes private.
    "private": replacing((r"\bself\.(?=[a-z])", "self._")),
    "camel_case": lambda _, code: re.sub(r"(?<=[a-z])_([a-z])", lambda m: m[1].upper(), code),
    "crlf": lambda _, code: code.replace("\n", "\r\n"),
    # Add a line after the head of each function.
    "traced": replacing((r"^( *)(def .*:)$", r"\1\2\n\1    trace(locals())")),
    "annotated": replacing((r"^( *def .*\)):$", r"\1 -> None:")),
    "uncommented": replacing((r"\n *#.*|  #.*", "")),
    "called": called,
    "here_and_there": here_and_there,
}
RECORDS: dict[str, Edit] = {
    "keys_renamed": replacing(('"name"', '"full_name"'), ('"price"', '"unit_price"')),
    "field_dropped": replacing((r'"city": "[^"]*", ', "")),
    "field_added": replacing(('"}', '", "stock": true}')),
    "value_set": lambda rng, lines: re.sub(r'("price": )\d+', rf"\g<1>{rng.randint(1000, 9999)}", lines),
    "value_quoted": replacing((r'("price": )(\d+)', r'\1"\2 EUR"')),
    "to_csv": lambda _, lines: "\n".join(",".join(re.findall(r': "?([^",}]*)', line)) for line in lines.split("\n")),
}
TABLES: dict[str, Edit] = {
    "column_dropped": replacing((r"^(\|[^|\n]*\|)[^|\n]*\|", r"\1")),
    "column_added": column_added,
    "names_linked": replacing((r"^\| (\w+) (\w+) \|", r"| [\1 \2](people.md) |")),
}


def in_one_function(rng: random.Random, code: str) -> str:
    """Rename a name in one function only, although it occurs everywhere."""
    parts = re.split(r"(?m)^(?= *def )", code)
    names = _most_used(rng, code, 1, 3)
    return "".join(_rename(rng, part, names) if i % 4 == 2 else part for i, part in enumerate(parts))


def moved(rng: random.Random, code: str) -> str:
    """Move blocks to other places."""
    blocks = re.split(r"(?m)^(?= *(?:def|class) )", code)
    for _ in range(max(1, len(blocks) // 4)):
        blocks.insert(rng.randrange(len(blocks)), blocks.pop(rng.randrange(len(blocks))))
    return "".join(blocks)


def reordered(rng: random.Random, lines: str) -> str:
    split = lines.split("\n")
    rng.shuffle(split)
    return "\n".join(split)


def mixed(rng: random.Random, code: str) -> str:
    for name in rng.sample(["rename_one", "private", "quotes", "traced", "here_and_there", "annotated"], 3):
        code = CODE[name](rng, code)
    return code


ADVERSARIES: dict[str, Edit] = {
    # Rename a name in the first half only.
    "half_way": lambda rng, code: rename_one(rng, code[: len(code) // 2]) + code[len(code) // 2 :],
    "in_one_function": in_one_function,
    "moved": moved,
    "mixed": mixed,
    "reordered": reordered,
    # The prompt shows the text before and after the first of these.
    "two_versions": lambda rng, code: here_and_there(rng, rename_one(rng, code)),
}
EDITS = CODE | RECORDS | TABLES | ADVERSARIES
NAMES = (*EDITS, "turns")


def _text(rng: random.Random, corpus: Corpus, name: str, chars: int) -> str:
    if name in RECORDS or name == "reordered":
        return "\n".join(map(record_line, records(rng, max(2, chars // RECORD_CHARS))))
    if name in TABLES:
        lines = ["| name | city | price | type |", "| --- | --- | --- | --- |"]
        rows = records(rng, max(2, chars // ROW_CHARS))
        return "\n".join([*lines, *("| {name} | {city} | {price} | {type} |".format(**row) for row in rows)])
    return corpus.snippet(rng, chars)


def draw(rng: random.Random, corpus: Corpus, name: str, chars: int) -> list[Message]:
    """A request to edit a text of about ``chars`` characters, with its answer. Empty if there is nothing to edit.

    "turns" are three edits of one file, which only the first request shows.
    """
    text = corpus.snippet(rng, chars // 3) if name == "turns" else _text(rng, corpus, name, chars)
    messages: list[str] = []
    for kind in rng.sample(list(CODE), 3) if name == "turns" else [name]:
        edited = EDITS[kind](rng, text)
        if edited == text and name != "turns":
            return []
        shown = "" if messages else f"\n{fenced(text)}"
        if name == "two_versions":
            shown = f"\n{fenced(here_and_there(rng, text))}{shown}"
        messages += [f"Edit this: {kind}.{shown}", fenced(edited)]
        text = edited
    return chat(*messages)
