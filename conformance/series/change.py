"""A change of mlx-lm, as two commits of a repository: a patch of the series, or a branch that somebody proposes."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conformance.series import patches as series
from conformance.series.stand_in import with_model
from conformance.series.trees import Done, run_tests
from conformance.series.upstream_tests import AS_ON_STOCK

# pytest's exit status when a test fails, when a file does not import, and when a test of such a file is named.
FAILURES = (1, 2, 4)
TESTS = re.compile(r"tests/test_\w+\.py")


class NoChange(Exception):
    """The name does not lead to a change. The message says why."""


@dataclass(frozen=True)
class Change:
    repository: Path
    before: str
    after: str

    def git(self, *args: str) -> bytes:
        return series.git(*args, where=self.repository)

    def numbers(self) -> list[tuple[int, int, str]]:
        """(lines added, lines removed, file) for each file."""
        said = self.git("diff", "--no-renames", "--numstat", self.before, self.after).decode()
        rows = [line.split("\t") for line in said.splitlines()]
        return [(int(plus), int(minus), name) for plus, minus, name in rows if plus != "-"]

    def tests(self) -> list[str]:
        """The test files that it changes."""
        listed = set(self.git("ls-tree", "-r", "--name-only", self.after, "tests").decode().split())
        return [name for _, _, name in self.numbers() if TESTS.fullmatch(name) and name in listed]

    def unpack(self, commit: str, into: Path) -> Path:
        return series.unpack(commit, into, self.repository)


def of_patch(number: int) -> Change:
    history = series.commits()
    return Change(series.checkout(), history[number - 1], history[number])


def of_ref(name: str, against: str = "") -> Change:
    """The change of DIRECTORY@REF, a ref of a clone: all since it left ``against``, or else its last commit."""
    directory, _, ref = name.rpartition("@")
    where = Path(directory).expanduser().resolve()
    change = Change(where, "", "")
    try:
        after = change.git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").decode().strip()
        base = ("merge-base", against, after) if against else ("rev-parse", "--verify", "--quiet", f"{after}^")
        before = change.git(*base).decode().strip()
    except (subprocess.CalledProcessError, OSError) as error:
        raise NoChange(f"{where} has no commit {ref} with one before it{f' in {against}' * bool(against)}.") from error
    return Change(where, before, after)


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
    after, before = (with_model(change.unpack(c, folder / c[:12])) for c in (change.after, change.before))
    if not (files := change.tests()):
        return Done(0, "it has no test"), Done(0, "it has no test")
    tests = [*selected(files, before, after), *AS_ON_STOCK, *options]
    passed = run_tests(after, *tests)
    # Helpers that the tests share come along. Only the package itself is to be missing.
    for file in (name for _, _, name in change.numbers() if name.startswith("tests/") and (after / name).exists()):
        (before / file).parent.mkdir(exist_ok=True)
        (before / file).write_bytes((after / file).read_bytes())
    return passed, run_tests(before, "-rfE", *tests)
