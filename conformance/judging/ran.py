"""Which of the lines that a tree changed ran, and which of its functions were never called. It needs no mlx."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What coverage.py calls a function, or a method of a class; "" is the rest of a module.
PUBLIC = re.compile(r"((?!_)\w+\.)*((?!_)\w+|__call__)")
# How many functions that were never called are named.
NAMED = 3


@dataclass
class File:
    """A changed file: its lines that hold code, those of them that ran, and the public functions that did not."""

    name: str
    changed: int
    ran: int
    # With a number that orders them: those that yield, which may be loops that decode, the others, and main.
    never: list[tuple[int, str]] = field(default_factory=list)


def changed_files(base: Path, tree: Path) -> list[str]:
    """The files of a package that are not as on the base, or that only one of them has, by their path in it."""
    both = {path.relative_to(one).as_posix() for one in (base, tree) for path in one.rglob("*.py")}
    return [name for name in sorted(both - {"_version.py"}) if lines_of(base / name) != lines_of(tree / name)]


def lines_of(file: Path) -> list[str] | None:
    return file.read_text("utf-8").splitlines() if file.exists() else None


def looked_at(base: Path, tree: Path, names: list[str], covered: dict[str, dict[str, Any]]) -> list[File]:
    """Changed files of a package, with what coverage.py says of them. It knows of files that were never imported."""
    found = []
    for name in names:
        if (about := covered.get(name)) is None:
            continue
        after, nodes = lines_of(tree / name) or [], list(ast.walk(ast.parse((tree / name).read_text("utf-8"))))
        # Of a statement that holds no others, coverage.py counts the first line.
        alone = (node for node in nodes if isinstance(node, ast.stmt) and not hasattr(node, "body"))
        first = {n: node.lineno for node in alone for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        # Where lines were deleted, the one that follows counts.
        spans = difflib.SequenceMatcher(None, lines_of(base / name) or [], after, autojunk=False).get_opcodes()
        changed = {n + 1 for tag, _, _, i, j in spans if tag != "equal" for n in range(i, max(j, i + 1))}
        lines = {first.get(n, n) for n in changed}
        if code := lines.intersection(about["executed_lines"] + about["missing_lines"]):
            loops = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and makes(node)}
            never = uncalled(about["functions"], lines)
            ordered = sorted((0 if one.rpartition(".")[2] in loops else 1 + (one == "main"), one) for one in never)
            found.append(File(name, len(code), len(code.intersection(about["executed_lines"])), ordered))
    return found


def makes(function: ast.FunctionDef) -> bool:
    """Whether it yields."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def uncalled(functions: dict[str, dict[str, Any]], lines: set[int]) -> list[str]:
    """The changed public functions and methods of which no line ran. One inside another is no public one."""
    return [
        name
        for name, about in functions.items()
        if PUBLIC.fullmatch(name)
        and not functions.keys() & {name.rpartition(".")[0]} - {""}
        and not about["executed_lines"]
        and lines.intersection(about["missing_lines"])
    ]


def sentence(files: list[File]) -> str:
    """The first line of the screen: how much of the change ran, and the functions that never did, loops first."""
    if not files:
        return "No line of code is new or changed."
    changed, ran = sum(file.changed for file in files), sum(file.ran for file in files)
    where = files[0].name if len(files) == 1 else f"{len(files)} files"
    functions = [(rank, f"`{name}` of {file.name}") for file in files for rank, name in file.never]
    never = [function for _, function in sorted(functions, key=lambda one: one[0])]
    said = f"Of {changed} changed lines of {where} {ran} ran"
    if not never:
        return f"{said}; each changed public function was called."
    more = f" and {len(never) - NAMED} more" if len(never) > NAMED else ""
    return f"{said}; never called: {', '.join(never[:NAMED])}{more}."
