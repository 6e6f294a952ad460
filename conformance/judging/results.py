"""What became of each test of a run, as the option --report wrote it. It needs no mlx, and no pytest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import ROOT

HOLDS, BROKEN, REFUSED, ABSENT = "holds", "broken", "refused", "not offered"
# Neither green nor red: no draft came up, so the test could not have failed; or it was stopped.
NOT_SHOWN, NOT_FINISHED = "not shown", "not finished"
# A skip without one of these words.
SKIPPED = "skipped"
# The kind of an expected failure, by the start of its reason, in the order of a verdict.
KINDS = {"No such API: ": "no such API", "Wrong: ": "wrong", "Upstream model fault, ": "wrong", "Refused: ": "refused"}
# The parts that are asked: the paths of their tests in conformance/, and those of mlx_lm whose changes they are about.
# A file is of the first part that it fits; what is wrong in a part explains what is wrong in those behind it.
PARTS = {
    "caches": (r"caches/|contracts/c1_", r"models/(cache|base)\.py"),
    "models": (r"architectures/", r"models/(?!cache)\w+\.py"),
    "batch": (r"\w*batch|contracts/(c10_|\w*(batch|rows))", r"(generate|sample_utils)\.py|models/(cache|base)\.py"),
    "decoding": (r"contracts/", r"(generate|sample_utils)\.py|draft/|models/(cache|base|\w+)\.py"),
    "commands": (r"commands/", r"(generate|chat|server|cli)\.py|draft/"),
    "server": (r"server/", r"(server|generate|sample_utils|tokenizer_utils)\.py|models/cache\.py|draft/"),
}


@dataclass
class Result:
    outcome: str
    # The first line of what the test says, and the lines that show it.
    said: str = ""
    lines: str = ""
    # Why the release is expected to fail it.
    expected: str = ""
    # The contract that the judge asks with this test, whether upstream promises it, and what the test noted.
    asked: str = ""
    promised: bool = True
    notes: dict[str, Any] = field(default_factory=dict)
    # Whether only the comparison with the base shows it.
    differs: bool = False

    @property
    def cases(self) -> dict[str, str]:
        """What a test that fails says of each of its cases that does."""
        found: dict[str, str] = self.notes.get("cases", {})
        return found

    @property
    def about(self) -> str:
        return str(self.notes.get("about", ""))

    @property
    def uses(self) -> set[str]:
        return {self.about, *str(self.notes.get("uses", "")).split(", ")} - {""}


Results = dict[str, Result]


def kind(reason: str) -> str:
    """The kind of a reason, or an empty string if the reason names none."""
    return next((word for start, word in KINDS.items() if reason.startswith(start)), "")


def asked_files(parts: list[str]) -> list[str]:
    """The files with tests of these parts that are asked of any tree, by their path in the repository.

    Programs on caches come first, as they are the shortest that fail, and explain what is wrong with models.
    """
    paths = sorted((ROOT / "conformance").rglob("test_*.py"), key=lambda path: (path.name != "test_programs.py", path))
    tests = (path for path in paths if "mark.asked(" in path.read_text())
    names = (path.relative_to(ROOT).as_posix() for path in tests)
    return [name for name in names if part_of(name) in parts]


def part_of(test: str) -> str | None:
    """The part of a file, or of a test by its id."""
    path = test.removeprefix("conformance/")
    return next((part for part, (where, _) in PARTS.items() if re.match(where, path)), None)


def read(file: Path) -> tuple[str, Results]:
    """The versions and the device of a run, and the result of each test by its id: by part, and as it was collected.

    A test that passed may fail at its end; what failed first is told.
    """
    on, collected, found = "", list[str](), Results()
    for line in map(json.loads, file.read_text("utf-8").splitlines()):
        on, collected = line.get("on", on), line.get("collected", collected)
        if (test := line.pop("test", None)) is not None and (test not in found or found[test].outcome == HOLDS):
            found[test] = Result(**line)
    order, parts = {test: i for i, test in enumerate(collected)}, [*PARTS, None]
    return on, {test: found[test] for test in sorted(found, key=lambda t: (parts.index(part_of(t)), order.get(t, 0)))}
