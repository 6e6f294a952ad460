"""A patch of the series, as two commits of the checkout, and its tests with it and without it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from conformance.series import patches as series
from conformance.series.stand_in import with_model
from conformance.series.trees import Done, run_tests
from conformance.series.upstream_tests import AS_ON_STOCK

# pytest's exit status when a test fails, when a file does not import, and when a test of such a file is named.
FAILURES = (1, 2, 4)


@dataclass(frozen=True)
class Change:
    before: str
    after: str

    def files(self) -> list[str]:
        """The files that it changes, and does not delete."""
        return (
            series.git("diff", "--no-renames", "--name-only", "--diff-filter=d", self.before, self.after)
            .decode()
            .split()
        )

    def tests(self) -> list[str]:
        return [name for name in self.files() if re.fullmatch(r"tests/test_\w+\.py", name)]


def of_patch(number: int) -> Change:
    return Change(*series.commits()[number - 1 : number + 1])


def tests_of(file: Path) -> set[tuple[str, str]]:
    """The tests of a file, by name and code."""
    nodes = ast.walk(ast.parse(file.read_text() if file.exists() else ""))
    return {(n.name, ast.dump(n)) for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test")}


def selected(files: list[str], before: Path, after: Path) -> list[str]:
    """What pytest selects the tests by that a change adds or changes: whole files if it changes no test in them."""
    names = sorted({name for file in files for name, _ in tests_of(after / file) - tests_of(before / file)})
    return [*files, "-k", " or ".join(names)] if names else files


def with_and_without(change: Change, folder: Path, *options: str) -> tuple[Done, Done]:
    """Run the tests of a change on the tree with it, and on the tree without it."""
    after, before = (with_model(series.unpack(c, folder / c[:12])) for c in (change.after, change.before))
    if not (files := change.tests()):
        return Done(0, "it has no test"), Done(0, "it has no test")
    tests = [*selected(files, before, after), *AS_ON_STOCK, *options]
    passed = run_tests(after, *tests)
    # Helpers that the tests share come along. Only the package itself is to be missing.
    for file in (name for name in change.files() if name.startswith("tests/")):
        (before / file).parent.mkdir(exist_ok=True)
        (before / file).write_bytes((after / file).read_bytes())
    return passed, run_tests(before, "-rfE", *tests)
