"""Real edits: an old text, what is asked, and the new text that somebody else made of it. No model is needed."""

from __future__ import annotations

import ast
import difflib
import json
import platform
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from tokenizers import Tokenizer

from conformance.lab.recorded import sources
from conformance.lab.recorded.answers import EDITS, KnownEdit, document_of, write
from conformance.lab.recorded.prompts import as_csv, tables
from conformance.lab.texts.workloads import standard_library
from conformance.smollm2 import path_of
from conformance.subjects.prompts import fenced

RELEASES = {
    "anyio": ("4.6.0", "4.7.0"),
    "attrs": ("23.1.0", "23.2.0"),
    "click": ("8.1.7", "8.1.8"),
    "httpx": ("0.27.0", "0.28.1"),
    "itsdangerous": ("2.1.2", "2.2.0"),
    "more-itertools": ("10.5.0", "10.6.0"),
    "packaging": ("24.0", "24.2"),
    "pluggy": ("1.4.0", "1.5.0"),
    "requests": ("2.31.0", "2.32.3"),
}
HTTPCORE, PSYCOPG = "httpcore==1.0.7", "psycopg==3.2.3"
# How many edits of each kind, and the fewest and most tokens of either text.
EACH, SHORTEST, LONGEST = 24, 100, 4000
# Texts that are less alike than this are no edit of each other.
ALIKE = 0.5
# The chat template of SmolLM2, with its own system message.
BEFORE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
)
BETWEEN, AFTER = "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"


@dataclass(frozen=True)
class Pair:
    """Two texts, and what is asked. ``source`` is a document, a colon and the place in it."""

    kind: str
    source: str
    ask: str
    old: str
    new: str


def releases(kind: str, suffix: str, ask: str) -> Iterator[Pair]:
    """Files that two releases have both, and that differ."""
    for name, (old, new) in RELEASES.items():
        before, after = (sources.files(f"{name}=={one}", suffix, ascii_only=False) for one in (old, new))
        for file, text in before.items():
            # The folder of the metadata has the version in its name.
            other = after.get(file.replace(f"-{old}.dist-info", f"-{new}.dist-info"))
            if other is not None and other != text:
                yield Pair(kind, f"{name} {file}:{old} to {new}", ask.format(name=name, new=new), text, other)


def documents() -> Iterator[Pair]:
    """The README, and what is beside it on the page of a package."""
    for pair in releases("document", "/METADATA", "Write the README of {name} {new}. This is the last one."):
        yield Pair(pair.kind, pair.source, pair.ask, *(text.partition("\n\n")[2] for text in (pair.old, pair.new)))


def asynchronous() -> Iterator[Pair]:
    """Modules that a script makes from asynchronous ones."""
    ask = "Write this module without async and await."
    made = {file: text for package in (HTTPCORE, PSYCOPG) for file, text in sources.files(package, ".py").items()}
    for file, text in made.items():
        other = file.replace("_async/", "_sync/").replace("_async.py", ".py")
        if other != file and other in made:
            for place, (old, new) in enumerate(parts_of_both(text, made[other])):
                yield Pair("async to sync", f"{file}:{place}", ask, old, new)


def parts_of_both(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The classes and functions of two modules, in order, if both have as many."""
    kinds = ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef
    nodes = [[node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)] for text in (old, new)]
    for before, after in zip(*nodes, strict=True) if len(nodes[0]) == len(nodes[1]) else ():
        yield source_of(old, before), source_of(new, after)


def source_of(text: str, node: ast.AST) -> str:
    return textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")


def formatted() -> Iterator[Pair]:
    """Functions and classes of the standard library. The new text is made once one is chosen."""
    for name, text in standard_library():
        for node, source in sources.definitions(text):
            code = textwrap.dedent(source).strip()
            if 400 < len(code) < 6000 and zlib.crc32(code.encode()) % 16 == 0:
                yield Pair("black", f"{name}:{node.name}:{node.lineno}", "Format this code with black.", code, "")


def black_of(code: str) -> str:
    # Only the command that writes the file needs it.
    import black

    return black.format_str(code, mode=black.Mode()).strip()


def json_of_tables() -> Iterator[Pair]:
    for name, rows in tables().items():
        for n_rows in (10, 20, 40):
            for start in range(0, min(len(rows) - n_rows, 200), n_rows):
                some = [dict(list(row.items())[:6]) for row in rows[start : start + n_rows]]
                new = json.dumps(some, indent=1)
                yield Pair("table to JSON", f"{name}:{start}, {n_rows} rows", "Write this as JSON.", as_csv(some), new)


def pairs() -> dict[str, Iterator[Pair]]:
    """What may be taken of each kind."""
    return {
        "release": releases("release", ".py", "Write this file of {name} as it is in release {new}."),
        "async to sync": asynchronous(),
        "black": formatted(),
        "table to JSON": json_of_tables(),
        "document": documents(),
    }


def is_edit(old: str, new: str) -> bool:
    return old != new and difflib.SequenceMatcher(None, old.splitlines(), new.splitlines()).ratio() > ALIKE


def chosen(kind: str, found: Iterator[Pair], tokenizer: Tokenizer) -> Iterator[KnownEdit]:
    """Edits drawn by a hash of their source, at most four of a document."""
    per_document = Counter[str]()
    for pair in sorted(found, key=lambda pair: (zlib.crc32(pair.source.encode()), pair.source)):
        document = document_of(pair.source)
        if per_document.total() == EACH:
            return
        if per_document[document] == 4:
            continue
        new = black_of(pair.old) if kind == "black" else pair.new
        if max(len(pair.old), len(new)) > 5 * LONGEST:
            continue
        sizes = [len(tokenizer.encode(text).ids) for text in (pair.old, new)]
        if min(sizes) >= SHORTEST and max(sizes) <= LONGEST and (kind == "table to JSON" or is_edit(pair.old, new)):
            per_document[document] += 1
            prompt = f"{BEFORE}{pair.ask}\n{fenced(pair.old.strip())}{BETWEEN}"
            answer = f"{fenced(new.strip())}{AFTER}"
            yield KnownEdit(kind, pair.source, *(tokenizer.encode(text).ids for text in (prompt, answer)))


def write_edits() -> None:
    tokenizer = Tokenizer.from_file(f"{path_of('smollm2')}/tokenizer.json")
    edits = [edit for kind, found in pairs().items() for edit in chosen(kind, found, tokenizer)]
    about = {"python": platform.python_version(), "black": version("black"), "tokenizer": "SmolLM2"}
    write(EDITS, about, edits)
    for kind in pairs():
        some = [edit for edit in edits if edit.kind == kind]
        print(f"{kind}: {len(some)} edits, {sum(len(edit.answer) for edit in some)} tokens of answers")
