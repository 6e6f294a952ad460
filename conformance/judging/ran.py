"""Which of the lines that a tree changed ran, and which of its functions were never called. It needs no mlx."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

# What coverage.py calls a function, or a method of a class; "" is the rest of a module.
PUBLIC = r"((?!_)\w+\.)*((?!_)\w+|__call__)"
# How many functions that were never called are named.
NAMED = 3


@dataclass
class File:
    """A changed file: its lines that hold code, those of them that ran, and the public functions that did not."""

    name: str
    changed: int
    ran: int
    uncalled: list[str]
    # Those of them that yield: the loops that decode.
    loops: list[str] = field(default_factory=list)


def changed_files(base: Path, tree: Path) -> list[str]:
    """The files of a package that are not as on the base, by their path in it."""
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.py"))
    return [
        name
        for name in names
        if name != "_version.py"
        and (not (base / name).exists() or (base / name).read_bytes() != (tree / name).read_bytes())
    ]


def changed_lines(base: Path, tree: Path) -> set[int]:
    """The numbers of the lines of a file that are new or changed."""
    before = base.read_text("utf-8").splitlines() if base.exists() else []
    matcher = difflib.SequenceMatcher(None, before, tree.read_text("utf-8").splitlines(), autojunk=False)
    # Where lines were deleted, the one that follows counts.
    spans = ((start, max(end, start + 1)) for tag, _, _, start, end in matcher.get_opcodes() if tag != "equal")
    return {n + 1 for start, end in spans for n in range(start, end)}


def looked_at(base: Path, tree: Path, names: list[str], covered: dict[str, dict[str, Any]]) -> list[File]:
    """Changed files of a package, with what coverage.py says of them. It knows of files that were never imported."""
    found = []
    for name in names:
        lines, about = changed_lines(base / name, tree / name), covered.get(name)
        if about is not None and (code := lines.intersection(about["executed_lines"] + about["missing_lines"])):
            executed = code.intersection(about["executed_lines"])
            never = uncalled(about["functions"], lines)
            makers = generators((tree / name).read_text("utf-8"))
            loops = [function for function in never if function.rpartition(".")[2] in makers]
            found.append(File(name, len(code), len(executed), never, loops))
    return found


def generators(source: str) -> set[str]:
    """The functions of a module that yield."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return {one.name for one in functions if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(one))}


def uncalled(functions: dict[str, dict[str, Any]], lines: set[int]) -> list[str]:
    """The changed public functions and methods of which no line ran. One inside another is no public one."""
    return [
        name
        for name, about in functions.items()
        if re.fullmatch(PUBLIC, name)
        and not functions.keys() & {name.rpartition(".")[0]} - {""}
        and not about["executed_lines"]
        and lines.intersection(about["missing_lines"])
    ]


def sentence(files: list[File]) -> str:
    """The first line of the screen: the functions that never ran, loops first, and one of each file before the next."""
    if not files:
        return "No line of code is changed."
    changed, ran = sum(file.changed for file in files), sum(file.ran for file in files)
    where = files[0].name if len(files) == 1 else f"{len(files)} files"
    rounds = zip_longest(*([(name in file.loops, name, file.name) for name in file.uncalled] for file in files))
    ordered = sorted((one for names in rounds for one in names if one), key=lambda one: (not one[0], one[1] == "main"))
    never = [f"`{name}` of {file}" for _, name, file in ordered]
    said = f"Of {changed} changed lines of {where} {ran} ran"
    if not never:
        return f"{said}; each changed public function was called."
    more = f" and {len(never) - NAMED} more were" if len(never) > NAMED else " was" if len(never) == 1 else " were"
    return f"{said}; {', '.join(never[:NAMED])}{more} never called."
