"""Which of the lines that a tree changed ran, and which of its functions were never called. It needs no mlx."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class File:
    """A changed file: its lines that hold code, those of them that ran, and the public functions that did not."""

    name: str
    changed: int
    ran: int
    uncalled: list[str]


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


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The public functions and methods of a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef) and (not child.name.startswith("_") or child.name == "__call__"):
            yield f"{prefix}{child.name}", child


def body_of(function: ast.FunctionDef) -> set[int]:
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return set(range(first.lineno, (function.end_lineno or first.lineno) + 1))


def looked_at(base: Path, tree: Path, covered: dict[str, dict[str, Any]]) -> list[File]:
    """Each changed file of a package, with what coverage.py says of it. A file that was never imported did not run."""
    found = []
    for name in changed_files(base, tree):
        lines, about = changed_lines(base / name, tree / name), covered.get(name, {})
        executed = set(about.get("executed_lines", ()))
        module = ast.parse((tree / name).read_text("utf-8"))
        code = executed | set(about.get("missing_lines", ())) if about else statements(module)
        uncalled = [
            said
            for said, function in functions(module)
            if lines & body_of(function) & code and not executed & body_of(function)
        ]
        if lines & code:
            found.append(File(name, len(lines & code), len(lines & executed), uncalled))
    return found


def statements(module: ast.Module) -> set[int]:
    return {node.lineno for node in ast.walk(module) if isinstance(node, ast.stmt)}


def sentence(files: list[File]) -> str:
    """The first line of the screen."""
    if not files:
        return "No line of code is changed."
    changed, ran = sum(file.changed for file in files), sum(file.ran for file in files)
    where = files[0].name if len(files) == 1 else f"{len(files)} files"
    never = [f"`{name}` of {file.name}" for file in files for name in file.uncalled]
    said = f"Of {changed} changed lines of {where} {ran} ran"
    if not never:
        return f"{said}; each changed public function was called."
    more = f" and {len(never) - 2} more were" if len(never) > 2 else " was" if len(never) == 1 else " were"
    return f"{said}; {', '.join(never[:2])}{more} never called."
