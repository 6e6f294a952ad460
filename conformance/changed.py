"""Which tests of a file a patch adds or changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def changed_tests(before: str, after: str) -> list[str]:
    """The names of the tests that are new or read otherwise, "Class::test" or "test"; none where only other code is."""
    old = dict(_tests(ast.parse(before)))
    return [name for name, code in _tests(ast.parse(after)) if old.get(name) != code]


def _tests(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{child.name}::")
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            yield prefix + child.name, ast.dump(child)
