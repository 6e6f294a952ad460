"""What became of each test of a run, as the option --report wrote it. It needs no mlx, and no pytest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import ROOT

HOLDS, BROKEN, REFUSED, ABSENT = "holds", "broken", "refused", "not offered"
# Neither green nor red: the test says nothing about the tree, as no draft came up; or it was stopped.
INCONCLUSIVE, NOT_FINISHED = "inconclusive", "not finished"
# A skip without one of these words.
SKIPPED = "skipped"
# Errors of a process or a server that took too long.
LATE = re.compile(r"[\w.]*Time(d?out|outExpired|outError)\b")
# The parts that are asked: the paths of their tests in conformance/, and those of mlx_lm whose changes they are about.
# A file is of the first part that it fits; what is wrong in a part explains what is wrong in those behind it.
PARTS = {
    "caches": (r"caches/", r"models/(cache|base)\.py"),
    "models": (r"architectures/", r"models/(?!cache)\w+\.py"),
    "batch": (r"contracts/test_c10_", r"(generate|sample_utils)\.py|models/(cache|base)\.py"),
    "decoding": (r"contracts/", r"(generate|sample_utils)\.py|draft/|models/(cache|base|\w+)\.py"),
    "commands": (r"commands/", r"(generate|chat|server|cli)\.py|draft/"),
    "server": (r"server/", r"(server|generate|sample_utils|tokenizer_utils)\.py|models/cache\.py|draft/"),
}


@dataclass
class Result:
    outcome: str
    # The first line of what the test says, and the lines that show it.
    message: str = ""
    example: str = ""
    # Why the release is expected to fail it.
    expected: str = ""
    # Whether only the comparison with the base shows it.
    differs: bool = False
    # What the plugin noted: the place of the test, the contract of its mark, the one that the judge asks with it, and
    # whether only this repository promises that, and not upstream.
    order: int = 0
    contract: str = ""
    asked: str = ""
    ours: bool = False
    # What the test noted: what it is about, what that rests on, what it says of each case that fails, and of plain
    # decoding the steps and the number of forward passes.
    about: str = ""
    uses: str = ""
    cases: dict[str, str] = field(default_factory=dict)
    steps: str = ""
    forwards: str = "0"

    @property
    def rests_on(self) -> set[str]:
        return {self.about, *self.uses.split(", ")} - {""}


Results = dict[str, Result]


def result_of(report: dict[str, Any]) -> Result:
    """The result in a line that pytest made of its report."""
    expected, failure, noted = report.get("wasxfail", ""), report["longrepr"], report["user_properties"]
    notes: dict[str, Any] = {name: value for name, value in noted if name in Result.__dataclass_fields__}
    if report["outcome"] == "passed":
        return Result(HOLDS, expected=expected, **notes)
    if isinstance(failure, list):
        # Where a test was skipped, and why.
        reason = failure[2].removeprefix("Skipped: ")
        word, _, why = reason.partition(": ")
        known = word in (REFUSED, ABSENT, INCONCLUSIVE)
        return Result(word, why, **notes) if known else Result(SKIPPED, reason, **notes)
    text = str(failure["reprcrash"]["message"] if isinstance(failure, dict) else failure).strip()
    if "[XPASS(strict)]" in text:
        return Result(HOLDS, text, **notes)
    outcome = NOT_FINISHED if LATE.match(text) else REFUSED if expected.startswith("Refused") else BROKEN
    # What pytest.fail says is a sentence and lines; of anything else the first line counts.
    message, _, example = text.removeprefix("Failed: ").partition("\n\n")
    message = message.partition("\n")[0].removeprefix("AssertionError: ")
    return Result(outcome, message, example if text.startswith("Failed: ") else "", expected, **notes)


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

    A test that passed may fail at its end; what failed first counts.
    """
    on, found = "", Results()
    for line in map(json.loads, file.read_text("utf-8").splitlines()):
        on = line.get("on", on)
        if (test := line.get("nodeid")) is not None and (test not in found or found[test].outcome == HOLDS):
            found[test] = result_of(line)
    parts = [*PARTS, None]
    return on, dict(sorted(found.items(), key=lambda one: (parts.index(part_of(one[0])), one[1].order)))
