"""Planted faults, as data: a change of the source of mlx_lm, its contract, and the test that must be red."""

from __future__ import annotations

import ast
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """One table of a TOML file of this folder."""

    name: str
    contract: str
    # Arguments of pytest: a test's id, or a file and ``-k`` with words. At least one of these tests must be red.
    red: str
    # The file in mlx_lm, and what is replaced in it, once; ``within`` names a function, a method or a class of it.
    file: str
    right: str
    wrong: str
    within: str = ""
    # A part of the sentence that the red test says.
    says: str = ""
    # What gets it: the series, or the release as it is.
    tree: Literal["series", "release"] = "series"

    def apply(self, source: str) -> str:
        """The source with the fault.

        Raises:
            ValueError: if what is replaced is not there exactly once.
        """
        lines, nodes = source.splitlines(keepends=True), ast.parse(source).body
        start, end = 0, len(lines)
        for name in self.within.split(".") if self.within else ():
            (node,) = [n for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
            start, end, nodes = node.lineno - 1, node.end_lineno or 0, node.body
        part = "".join(lines[start:end])
        if part.count(self.right) != 1:
            raise ValueError(f"{self.name}: {self.right!r} is in {self.file} {part.count(self.right)} times")
        return "".join([*lines[:start], part.replace(self.right, self.wrong), *lines[end:]])


def read(path: Path) -> list[Fault]:
    return [Fault(**table) for table in tomllib.loads(path.read_text("utf-8")).get("fault", [])]


def faults() -> list[Fault]:
    """The faults of this folder."""
    return [fault for path in sorted(FOLDER.glob("*.toml")) for fault in read(path)]


def plant(package: Path, into: Path, fault: Fault | None = None) -> Path:
    """Copy a package with a fault, or without one. Returns the folder that it is imported from."""
    shutil.copytree(package, into / package.name)
    if fault is not None:
        path = into / package.name / fault.file
        path.write_text(fault.apply(path.read_text("utf-8")), "utf-8")
    return into
