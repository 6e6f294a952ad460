"""Check where each file of the suite lies and what it imports, by the rule of conformance/README.md.

python -m conformance.meta.repository.rooms    prints the drawing of the imports in conformance/README.md
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance import ROOT
from conformance.scorecard.rows import ROWS

SUITE = ROOT / "conformance"
ROWS_OF_TESTS = tuple(row.folder for row in ROWS if row.folder)
TESTING, META = "testing", "meta"
# The files that Python, pytest and python -m need at the top of the package.
TOP = ("__init__.py", "__main__.py", "conftest.py")


def files(suite: Path) -> dict[str, Path]:
    """The Python files of the suite, by their relative path."""
    return {path.relative_to(suite).as_posix(): path for path in sorted(suite.rglob("*.py"))}


def row_folder(name: str) -> str:
    """The folder of the row of a file, or an empty string for tools and shared code."""
    return next((folder for folder in ROWS_OF_TESTS if name.startswith(f"{folder}/")), "")


def room(name: str) -> str:
    """The first folder of a file."""
    return name.partition("/")[0] if "/" in name else ""


def imported(source: str, names: Mapping[str, Path]) -> Iterator[str]:
    """The files of the suite that a source imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("conformance."):
            module = node.module.removeprefix("conformance.").replace(".", "/")
            for path in [module, *(f"{module}/{alias.name}" for alias in node.names)]:
                yield from ({f"{path}.py", f"{path}/__init__.py"} & names.keys())


def uses(suite: Path) -> dict[str, set[str]]:
    """The files that each file imports."""
    names = files(suite)
    return {name: set(imported(path.read_text("utf-8"), names)) - {name} for name, path in names.items()}


def misplaced(name: str, source: str) -> Iterator[str]:
    """A sentence for each rule that a file of tests breaks."""
    if not row_folder(name):
        yield f"{name} is a test outside the rows of the scorecard."
    if room(name) != META and "mark.repository" in source:
        yield f"{name} has a test of this repository, which belongs to meta/."


def complaints(suite: Path) -> list[str]:
    """A sentence for each file that breaks the rule."""
    of, found = uses(suite), []
    users = Counter(used for by in of.values() for used in by)
    for name, used in of.items():
        stem, here = Path(name).stem, row_folder(name)
        if "/" not in name and name not in TOP:
            found.append(f"{name} lies in no folder.")
        if stem == "__init__":
            pass
        elif stem.startswith("test_"):
            found += misplaced(name, (suite / name).read_text("utf-8"))
        elif here:
            beside = [f"{here}/test_{stem[:end]}.py" for end, letter in enumerate(f"{stem}_") if letter == "_"]
            found += [] if any(one in of for one in beside) else [f"{name} helps no test of its folder by its name."]
        elif room(name) == TESTING and users[name] < 2:
            found.append(f"{name} is used by {users[name]} of the other files: two have to need what is shared.")
        for other in sorted(used):
            if row_folder(other) and (Path(other).stem.startswith("test_") or row_folder(other) != here):
                found.append(f"{name} imports {other}, which belongs to a row.")
            elif room(name) == TESTING and room(other) != TESTING:
                found.append(f"{name} imports {other}, which is no part of testing/.")
    return found


def drawing(suite: Path) -> str:
    """The imports between top folders, for Mermaid. All rows of tests are one folder, which may import every other."""
    arrows = set()
    for name, used in uses(suite).items():
        start = "tests" if row_folder(name) else room(name)
        for end in ("tests" if row_folder(other) else room(other) for other in used):
            if start and end and start not in (end, "tests"):
                arrows.add(f"    {start} --> {end}")
    return "\n".join(["graph LR", *sorted(arrows)]) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(drawing(SUITE), end="")
