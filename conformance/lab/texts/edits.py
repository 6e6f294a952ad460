"""Edits all over a text. A drafter easily loses its place in them, but it can learn the change.

An edit takes a text and returns the edited text. ``draw`` makes a conversation with an edit of a module of the standard
library, of records or of a table.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from conformance.lab.texts.workloads import IDENTIFIER, KEYWORDS, Corpus
from conformance.subjects.prompts import RECORD_CHARS, Message, chat, fenced, record_line
from conformance.subjects.prompts import records as draw_records

Edit = Callable[[random.Random, str], str]


def by_name(*edits: Edit) -> dict[str, Edit]:
    return {edit.__name__: edit for edit in edits}


# The approximate length of a table row, in characters.
ROW_CHARS = 40

_SYLLABLES = "ba ce di fo gu ka le mi no pu ra se ti vo xu za".split()


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


def rename_four(rng: random.Random, code: str) -> str:
    return _rename(rng, code, _most_used(rng, code, 4, 10))


def indent(rng: random.Random, code: str) -> str:
    return re.sub("^(?=.)", "    ", code, flags=re.M)


def dedent(rng: random.Random, code: str) -> str:
    return re.sub("^    ", "", code, flags=re.M)


def tabs(rng: random.Random, code: str) -> str:
    return re.sub("^( {4})+", lambda m: "\t" * (len(m[0]) // 4), code, flags=re.M)


def quotes(rng: random.Random, code: str) -> str:
    return code.replace("'", '"') if code.count("'") > code.count('"') else code.replace('"', "'")


def private(rng: random.Random, code: str) -> str:
    """Make attributes private."""
    return re.sub(r"\bself\.(?=[a-z])", "self._", code)


def camel_case(rng: random.Random, code: str) -> str:
    return re.sub(r"(?<=[a-z])_([a-z])", lambda m: m[1].upper(), code)


def crlf(rng: random.Random, code: str) -> str:
    return code.replace("\n", "\r\n")


def traced(rng: random.Random, code: str) -> str:
    """Add a line after the head of each function."""
    return re.sub(r"^( *)(def .*:)$", r"\1\2\n\1    trace(locals())", code, flags=re.M)


def annotated(rng: random.Random, code: str) -> str:
    return re.sub(r"^( *def .*\)):$", r"\1 -> None:", code, flags=re.M)


def uncommented(rng: random.Random, code: str) -> str:
    return re.sub(r"\n *#.*|  #.*", "", code)


def called(rng: random.Random, code: str) -> str:
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


CODE = by_name(rename_one, rename_four, indent, dedent, tabs, quotes, private, camel_case, crlf, traced)
CODE |= by_name(annotated, uncommented, called, here_and_there)


def keys_renamed(rng: random.Random, lines: str) -> str:
    return lines.replace('"name"', '"full_name"').replace('"price"', '"unit_price"')


def field_dropped(rng: random.Random, lines: str) -> str:
    return re.sub(r'"city": "[^"]*", ', "", lines)


def field_added(rng: random.Random, lines: str) -> str:
    return lines.replace('"}', '", "stock": true}')


def value_set(rng: random.Random, lines: str) -> str:
    return re.sub(r'("price": )\d+', rf"\g<1>{rng.randint(1000, 9999)}", lines)


def value_quoted(rng: random.Random, lines: str) -> str:
    return re.sub(r'("price": )(\d+)', r'\1"\2 EUR"', lines)


def to_csv(rng: random.Random, lines: str) -> str:
    return "\n".join(",".join(re.findall(r': "?([^",}]*)', line)) for line in lines.split("\n"))


RECORDS = by_name(keys_renamed, field_dropped, field_added, value_set, value_quoted, to_csv)


def column_dropped(rng: random.Random, table: str) -> str:
    return re.sub(r"^(\|[^|\n]*\|)[^|\n]*\|", r"\1", table, flags=re.M)


def column_added(rng: random.Random, table: str) -> str:
    head, rule, *rows = table.split("\n")
    return "\n".join([head + " checked |", rule + " --- |", *(row + " no |" for row in rows)])


def names_linked(rng: random.Random, table: str) -> str:
    return re.sub(r"^\| (\w+) (\w+) \|", r"| [\1 \2](people.md) |", table, flags=re.M)


TABLES = by_name(column_dropped, column_added, names_linked)


def half_way(rng: random.Random, code: str) -> str:
    """Rename a name in the first half only."""
    return rename_one(rng, code[: len(code) // 2]) + code[len(code) // 2 :]


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


def mixed(rng: random.Random, code: str) -> str:
    for edit in rng.sample([rename_one, private, quotes, traced, here_and_there, annotated], 3):
        code = edit(rng, code)
    return code


def reordered(rng: random.Random, lines: str) -> str:
    split = lines.split("\n")
    rng.shuffle(split)
    return "\n".join(split)


def two_versions(rng: random.Random, code: str) -> str:
    return here_and_there(rng, rename_one(rng, code))


ADVERSARIES = by_name(half_way, in_one_function, moved, mixed, reordered, two_versions)
EDITS = CODE | RECORDS | TABLES | ADVERSARIES
NAMES = (*EDITS, "turns")


def _text(rng: random.Random, corpus: Corpus, name: str, chars: int) -> str:
    if name in RECORDS or name == "reordered":
        return "\n".join(map(record_line, draw_records(rng, max(2, chars // RECORD_CHARS))))
    if name in TABLES:
        rows = draw_records(rng, max(2, chars // ROW_CHARS))
        lines = ["| name | city | price | type |", "| --- | --- | --- | --- |"]
        return "\n".join([*lines, *("| {name} | {city} | {price} | {type} |".format(**row) for row in rows)])
    return corpus.snippet(rng, chars)


def ask(rng: random.Random, corpus: Corpus, name: str, chars: int) -> list[Message]:
    """A request to edit a text of about ``chars`` characters, with its answer. Empty if there is nothing to edit."""
    text = _text(rng, corpus, name, chars)
    edited = EDITS[name](rng, text)
    if edited == text:
        return []
    shown = fenced(text)
    if name == "two_versions":
        shown = f"{fenced(here_and_there(rng, text))}\n{shown}"
    return chat(f"Edit this: {name}.\n{shown}", fenced(edited))


def turns(rng: random.Random, corpus: Corpus, chars: int) -> list[Message]:
    """Three edits of one file. Only the first request shows the file."""
    messages: list[str] = []
    text = corpus.snippet(rng, chars // 3)
    for edit in rng.sample(list(CODE.values()), 3):
        edited = edit(rng, text)
        shown = "" if messages else f"\n{fenced(text)}"
        messages += [f"Edit this: {edit.__name__}.{shown}", fenced(edited)]
        text = edited
    return chat(*messages)


def draw(rng: random.Random, corpus: Corpus, name: str, chars: int) -> list[Message]:
    """A conversation for one of ``NAMES``."""
    return turns(rng, corpus, chars) if name == "turns" else ask(rng, corpus, name, chars)
