"""What a comparison of two judged trees says, as Markdown: a screen of it, or all, for a review. It needs no mlx."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from conformance import ROOT
from conformance.judging.changes import NAMED, Change, sentence
from conformance.judging.difference import BAD, BROKE, CHANGED, NOT_KEPT, STOPPED, Group
from conformance.judging.results import NOT_FINISHED, Results, part_of
from conformance.tables import table

WIDTH = 118
# The lines of an example that a screen shows.
LINES = 12
# What the judge ends with.
GOOD, WORSE, NOT_JUDGED = 0, 1, 2


@dataclass
class Judgement:
    names: tuple[str, str]
    tree: Results
    groups: list[Group]
    changes: list[Change]
    # How one test is asked again, without its id, and how the judge is, without a part: programs and their arguments.
    pytest: list[str]
    command: list[str]

    @property
    def bad(self) -> list[Group]:
        return [group for group in self.groups if group.kind in BAD]

    def verdict(self) -> tuple[int, str]:
        """What the judge ends with, and a sentence that says why."""
        if self.bad:
            word = "BROKEN" if self.bad[0].kind == BROKE else "NO LONGER"
            return WORSE, f"{word}: {', '.join(dict.fromkeys(group.contract for group in self.bad))}"
        if stopped := sum(len(group.tests) for group in self.groups if group.kind == STOPPED):
            return NOT_JUDGED, f"NOT FINISHED: {stopped} tests, and nothing else broke"
        if self.changes and not any(one.ran for one in self.changes):
            return NOT_JUDGED, "NOT JUDGED: none of the tests runs what changed"
        left_out = any(one.outcome == NOT_FINISHED or test.endswith("::import") for test, one in self.tree.items())
        status = NOT_JUDGED if left_out or any(one.never for one in self.changes) else GOOD
        return status, "Nothing broke" if self.groups else "Nothing differs"

    def again(self, test: str) -> str:
        """A command that shows it, typed here. What differs from the base alone only the judge can show."""
        if self.tree[test].differs:
            return shlex.join([*self.command, "--only", part_of(test) or ""])
        file, _, name = test.partition("::")
        return shlex.join([*self.pytest, f"{os.path.relpath(ROOT / file)}::{name}"])

    def begin(self, most: int | None) -> Iterator[str]:
        """The lines that come first, and a row for each group, with the first of what its tests are about."""
        outcomes = Counter(one.outcome for one in self.tree.values()).most_common()
        counts = f"{len(self.tree)} tests: {', '.join(f'{n} {word}' for word, n in outcomes)}"
        said = f"{self.verdict()[1]}. {self.names[1]} against {self.names[0]}"
        for line in (sentence(self.changes), said, counts):
            yield from [*textwrap.wrap(line, WIDTH), ""]
        if self.groups:
            yield table(["", "contract", "tests", "of"], (self.row(group, most) for group in self.groups))

    def row(self, group: Group, most: int | None) -> list[str | int]:
        names = list(dict.fromkeys(self.tree[test].about or test for test in group.tests))
        more = f" and {len(names) - most} more" if most and len(names) > most else ""
        follow = ", ".join(f"{n} of {contract}" for contract, n in group.follow.items())
        of = f"{', '.join(names[:most])}{more}{f'; {follow} follow' if follow else ''}"
        return [group.kind, group.contract, len(group.tests), of]

    def example(self, test: str, most: int | None = None) -> Iterator[str]:
        """What a test says, the lines that show it, of which the last one is wrong, and how it is run again."""
        one = self.tree[test]
        yield from ["", *textwrap.wrap(f"{test.partition('::')[2]}: {one.message}", WIDTH)]
        if one.expected:
            yield from ["", *textwrap.wrap(f"The release fails this test too. {one.expected}", WIDTH)]
        lines = one.example.splitlines()
        if most and len(lines) > most:
            lines = [f"# {len(lines) - most + 1} lines before these are in the file.", *lines[1 - most :]]
        yield from ["", *(f"    {line}" for line in lines)] if lines else []
        yield from ["", f"    {self.again(test)}"]

    def screen(self) -> str:
        # Programs on caches come first, and are the shortest that fail.
        return "\n".join([*self.begin(NAMED), *(self.example(self.bad[0].tests[0], LINES) if self.bad else [])])

    def markdown(self) -> str:
        """All of it."""
        lines = [*self.begin(None)]
        for group in self.groups:
            if group.kind in (*BAD, NOT_KEPT, STOPPED, CHANGED):
                lines += ["", f"<details><summary>{group.kind}: {group.contract}</summary>"]
                lines += [line for test in group.tests for line in self.example(test)]
                lines += ["", "</details>"]
        rows = ([one.file, one.lines, one.ran, ", ".join(one.never)] for one in self.changes)
        lines += ["", table(["file", "changed lines", "ran", "never called"], rows)]
        return "\n".join(lines) + "\n"
