"""Conversations with answers that repeat their prompts: edits, records, quotes. Also prose that repeats nothing.

Everything is drawn from a seeded ``random.Random``, so a seed gives the same conversation on every machine. ``Corpus``
also needs the same Python standard library.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.subjects.prompts import (
    RECORD_CHARS,
    WORDS,
    Message,
    chat,
    fenced,
    json_edit,
    json_lookup,
    repeat,
    tool_call,
)

SKIPPED = frozenset("test tests idlelib lib2to3 site-packages encodings turtledemo pydoc_data".split())
IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{2,18}\b")
KEYWORDS = frozenset(
    "and assert async await break class continue def del elif else except finally for from global import lambda "
    "nonlocal not pass raise return try while with yield None True False self print len".split()
)


class Corpus:
    """Code and prose of the Python standard library: every 16th module, on which the fixture was not trained."""

    def __init__(self) -> None:
        root = Path(sysconfig.get_paths()["stdlib"])
        names = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
        names = [one for one in names if not SKIPPED.intersection(one.parts) and not one.name.startswith("_sysconfig")]
        names = [one for one in names if zlib.crc32(one.as_posix().encode()) % 16 == 0]
        texts = [text for one in names if (text := (root / one).read_text("utf-8", "replace")).isascii()]
        modules = ([line.rstrip().expandtabs(4) for line in text.splitlines()] for text in texts)
        self.code = [lines for lines in modules if len(lines) >= 40]
        self.prose = [text for module in texts for text in _docstrings(module)]

    def snippet(self, rng: random.Random, chars: int) -> str:
        """Consecutive lines of one module, dedented, about ``chars`` long."""
        lines = rng.choice(self.code)
        start = rng.randrange(max(1, len(lines) - 10))
        size, end = 0, start
        while end < len(lines) and (size < chars or end - start < 3):
            size += len(lines[end]) + 1
            end += 1
        text = textwrap.dedent("\n".join(lines[start:end])).strip("\n")
        return re.sub(r"\n\n+", "\n", text)

    def paragraph(self, rng: random.Random, chars: int) -> str:
        text = rng.choice(self.prose)
        while len(text) < chars:
            text += " " + rng.choice(self.prose)
        start = text.rfind(" ", 0, rng.randrange(len(text) - chars + 1) + 1) + 1
        return text[start : start + chars].rsplit(" ", 1)[0]


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = " ".join((ast.get_docstring(node) or "").split())
            if len(text) > 80 and ">>>" not in text:
                yield text


# An edit takes a text. It returns the request in words and the edited text, or None if there is nothing to edit.
Edit = Callable[[random.Random, str], tuple[str, str] | None]


def named_plainly(rng: random.Random, code: str) -> str:
    """The code with one name replaced by a common word, so that a small vocabulary has a token for it."""
    names = sorted(set(IDENTIFIER.findall(code)) - KEYWORDS)
    if not names:
        return code
    name = max(rng.sample(names, min(4, len(names))), key=lambda name: len(re.findall(rf"\b{name}\b", code)))
    return re.sub(rf"\b{name}\b", _new_word(rng, code), code)


def rename(rng: random.Random, code: str) -> tuple[str, str] | None:
    """Rename a common word that is not part of another name."""
    names = [word for word in WORDS if 0 < code.count(word) == len(re.findall(rf"\b{word}\b", code))]
    if not names:
        return None
    old = max(rng.sample(names, min(4, len(names))), key=code.count)
    new = _new_word(rng, code)
    return f"Change `{old}` to `{new}`.", code.replace(old, new)


def _new_word(rng: random.Random, text: str) -> str:
    return rng.choice([word for word in WORDS if word not in text])


def delete(rng: random.Random, code: str) -> tuple[str, str] | None:
    lines = code.split("\n")
    index = _unique_line(rng, lines)
    if index is None or len(lines) < 3:
        return None
    return f"Delete the line `{lines[index].strip()}`.", "\n".join(lines[:index] + lines[index + 1 :])


def replace(rng: random.Random, code: str) -> tuple[str, str] | None:
    lines = code.split("\n")
    index = _unique_line(rng, lines)
    if index is None:
        return None
    old = lines[index].strip()
    new = f"{rng.choice(WORDS)}_{rng.choice(WORDS)} = {rng.randint(0, 99)}"
    edited = [*lines[:index], lines[index].replace(old, new), *lines[index + 1 :]]
    return f"Replace the line `{old}` with `{new}`.", "\n".join(edited)


def _unique_line(rng: random.Random, lines: list[str]) -> int | None:
    stripped = [line.strip() for line in lines]
    unique = [
        i for i, line in enumerate(stripped) if 3 < len(line) < 60 and "`" not in line and stripped.count(line) == 1
    ]
    return rng.choice(unique) if unique else None


CODE_EDITS: tuple[Edit, ...] = (rename, rename, delete, replace)


def edit_chat(rng: random.Random, code: str, turns: int, edits: tuple[Edit, ...] = CODE_EDITS) -> list[Message]:
    """Edits of one text, turn after turn. Only the first turn shows it. Empty if the text has nothing to edit."""
    messages: list[str] = []
    if rename in edits:
        code = named_plainly(rng, code)
    for _ in range(turns):
        done = rng.choice(edits)(rng, code)
        if done is None:
            break
        ask, edited = done
        messages += [ask if messages else f"{ask}\n{fenced(code)}", fenced(edited)]
        code = edited
    return chat(*messages)


def agent_turn(rng: random.Random, code: str) -> list[Message]:
    """The answer first explains the change, then gives the whole text."""
    done = replace(rng, code)
    if done is None:
        return []
    ask, edited = done
    explained = ask.replace("Replace the line", "The line").replace("` with `", "` becomes `")
    return chat(f"Explain and fix. {ask}\n{fenced(code)}", f"{explained}\n{fenced(edited)}")


def quote(rng: random.Random, text: str) -> list[Message]:
    """Quote one sentence of a text, given its first words."""
    sentences = [s for s in re.split(r"(?<=[.;:]) ", text) if len(s.split()) > 4]
    if not sentences:
        return []
    wanted = rng.choice(sentences)
    start = " ".join(wanted.split()[:3])
    return chat(f"Quote the sentence that starts with `{start}`.\n{fenced(text)}", fenced(wanted))


def outline(code: str) -> list[Message]:
    """List the first lines of all functions and classes."""
    heads = [line.strip() for line in code.split("\n") if re.match(r"\s*(def|class) ", line)]
    return chat(f"List the functions.\n{fenced(code)}", fenced("\n".join(heads))) if heads else []


def continuation(rng: random.Random, text: str, what: str) -> list[Message]:
    """The second half of a text, with hardly anything to copy."""
    cut = text.rfind(" ", 0, len(text) // 4) + 1
    return chat(f"Write {what}.\n{text[:cut]}", text[cut:])


def draw(rng: random.Random, corpus: Corpus, kind: str, chars: int) -> list[Message]:
    """A conversation of one kind, with a text of about ``chars`` characters. Empty if the text does not suit it."""
    if kind in EDITS:
        return edit_chat(rng, corpus.snippet(rng, chars), 1, (EDITS[kind],))
    return OTHERS[kind](rng, corpus, chars)


EDITS: dict[str, Edit] = {"rename": rename, "delete": delete, "replace": replace}
OTHERS: dict[str, Callable[[random.Random, Corpus, int], list[Message]]] = {
    "chat": lambda rng, corpus, chars: edit_chat(rng, corpus.snippet(rng, chars // 3), rng.randint(2, 4)),
    "agent": lambda rng, corpus, chars: agent_turn(rng, corpus.snippet(rng, chars)),
    "outline": lambda rng, corpus, chars: outline(corpus.snippet(rng, chars)),
    "echo": lambda rng, corpus, chars: repeat(
        corpus.snippet(rng, chars) if rng.random() < 0.5 else corpus.paragraph(rng, chars)
    ),
    "quote": lambda rng, corpus, chars: quote(rng, corpus.paragraph(rng, chars)),
    "json": lambda rng, _, chars: json_edit(rng, max(1, chars // RECORD_CHARS)),
    "lookup": lambda rng, _, chars: json_lookup(rng, max(1, chars // RECORD_CHARS)),
    "tool": lambda rng, _, chars: tool_call(rng, max(1, chars // RECORD_CHARS)),
    "code": lambda rng, corpus, chars: continuation(rng, corpus.snippet(rng, chars), "code"),
    "prose": lambda rng, corpus, chars: continuation(rng, corpus.paragraph(rng, chars), "prose"),
}
KINDS = (*EDITS, *OTHERS)
