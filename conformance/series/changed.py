"""Find the tests of a file that a patch adds or changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def changed_tests(before: str, after: str) -> list[str]:
    """The names of the tests that are new or changed, as "Class::test" or "test".

    The list is empty if anything but tests and imports differs too: any test may use that.
    """
    (old, shared_before), (new, shared) = _parts(before), _parts(after)
    if before and shared_before != shared:
        return []
    return [name for name, code in new.items() if old.get(name) != code]


def _parts(source: str) -> tuple[dict[str, str], str]:
    """The tests by name, and the rest of the source without tests and imports."""
    module = ast.parse(source)
    tests = dict(_tests(module))
    module.body = [node for node in module.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return tests, ast.dump(module)


def _tests(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Take the tests out of a module or a class, name by name."""
    for child in list(node.body):
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{child.name}::")
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            node.body.remove(child)
            yield prefix + child.name, ast.dump(child)
