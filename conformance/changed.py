"""Which tests of a file a patch adds or changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def changed_tests(before: str, after: str) -> list[str]:
    """The names of the tests that are new or read otherwise, "Class::test" or "test".

    None if something else than tests and imports differs: any of the tests may use it.
    """
    old, new = ast.parse(before), ast.parse(after)
    tests = dict(_tests(old)), dict(_tests(new))
    if before and _dumped(old) != _dumped(new):
        return []
    return [name for name, code in tests[1].items() if tests[0].get(name) != code]


def _dumped(module: ast.Module) -> str:
    """What is left of a module without its imports and the tests that were taken out."""
    module.body = [node for node in module.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.dump(module)


def _tests(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Take the tests out of a module or a class, name by name."""
    for child in list(node.body):
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{child.name}::")
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            node.body.remove(child)
            yield prefix + child.name, ast.dump(child)
