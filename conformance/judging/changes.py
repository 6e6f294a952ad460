"""Which of the lines that a tree changed ran, and which of its functions were never called. It needs no mlx."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# How many functions, models or caches a line names.
NAMED = 5


@dataclass
class Change:
    """A changed file: how many of its changed lines hold code, how many of them ran, and the functions that did not."""

    file: str
    lines: int
    ran: int
    never: list[str]


def changed_files(base: Path, tree: Path) -> list[str]:
    """The files of a package that are not as on the base, or that only one of them has, by their path in it."""
    both = {path.relative_to(one).as_posix() for one in (base, tree) for path in one.rglob("*.py")}
    return [name for name in sorted(both - {"_version.py"}) if lines_of(base / name) != lines_of(tree / name)]


def lines_of(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []


def changed_lines(before: list[str], after: list[str]) -> set[int]:
    """The numbers of new lines, and of the one that follows deleted ones. Of a statement, its first line."""
    spans = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = {n + 1 for tag, _, _, i, j in spans if tag != "equal" for n in range(i, max(j, i + 1))}
    nodes = [node for node in ast.walk(ast.parse("\n".join(after))) if isinstance(node, ast.stmt)]
    alone = [(node.lineno, node.end_lineno or node.lineno) for node in nodes if not hasattr(node, "body")]
    first = {n: start for start, end in alone for n in range(start, end + 1)}
    return {first.get(n, n) for n in changed}


def change(base: Path, tree: Path, file: str, coverage: dict[str, Any]) -> Change:
    """What coverage.py says of the changed lines of a file of a package."""
    lines = changed_lines(lines_of(base / file), lines_of(tree / file))
    ran, missing = lines.intersection(coverage["executed_lines"]), lines.intersection(coverage["missing_lines"])
    functions = {name: one for name, one in coverage["functions"].items() if name and not one["executed_lines"]}
    never = [name for name, one in functions.items() if missing.intersection(one["missing_lines"])]
    return Change(file, len(ran | missing), len(ran), never)


def sentence(changes: list[Change]) -> str:
    """The first line of the screen: how much of the change ran, and the functions that never did."""
    if not changes:
        return "No line of code is new or changed."
    where = changes[0].file if len(changes) == 1 else f"{len(changes)} files"
    never = [f"`{name}` of {one.file}" for one in changes for name in one.never]
    more = f" and {len(never) - NAMED} more" if len(never) > NAMED else ""
    called = f"; never called: {', '.join(never[:NAMED])}{more}" if never else ""
    ran, lines = sum(one.ran for one in changes), sum(one.lines for one in changes)
    return f"{ran} of {lines} changed lines of {where} ran{called}."
