"""What a comparison of two judged trees says, as Markdown: a screen of it, or all, for a review. It needs no mlx."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from conformance import ROOT
from conformance.judging.difference import BAD, BROKE, CHANGED, NOT_KEPT, STOPPED, Group
from conformance.judging.ran import File, sentence
from conformance.judging.results import Results, part_of

WIDTH = 118
# The rows of the table and the lines of an example that a screen shows.
ROWS, LINES, NAMES = 12, 12, 5


@dataclass
class Judgement:
    names: tuple[str, str]
    tree: Results
    groups: list[Group]
    files: list[File]
    # How one test is asked again, without its id, and how the judge is, without a part: programs and their arguments.
    pytest: list[str]
    judge: list[str]

    @property
    def bad(self) -> list[Group]:
        return [group for group in self.groups if group.kind in BAD]

    def verdict(self) -> str:
        against = f"{self.names[1]} against {self.names[0]}"
        if self.bad:
            word = "BROKEN" if self.bad[0].kind == BROKE else "NO LONGER"
            return f"{word}: {', '.join(dict.fromkeys(group.contract for group in self.bad))}. {against}"
        if stopped := sum(len(group.tests) for group in self.groups if group.kind == STOPPED):
            return f"NOT FINISHED: {stopped} tests, and nothing else broke. {against}"
        return f"{'Nothing broke' if self.groups else 'Nothing differs'}. {against}"

    def again(self, test: str) -> str:
        """A command that shows it, typed here. What differs from the base alone only the judge can show."""
        if self.tree[test].differs:
            return shlex.join([*self.judge, "--only", part_of(test) or ""])
        file, _, name = test.partition("::")
        return shlex.join([*self.pytest, f"{os.path.relpath(ROOT / file)}::{name}"])

    def begin(self) -> list[str]:
        """The lines that come first, and what became of how many tests."""
        standing = Counter(one.outcome for one in self.tree.values()).most_common()
        counts = ", ".join(f"{n} {word}" for word, n in standing)
        wrapped = (textwrap.wrap(line, WIDTH) for line in (sentence(self.files), self.verdict()))
        return [*(line for lines in wrapped for line in lines), f"{len(self.tree)} tests: {counts}", ""]

    def row(self, group: Group, most: int) -> str:
        names = list(dict.fromkeys(self.tree[test].about or test for test in group.tests))
        more = f" and {len(names) - most} more" if len(names) > most else ""
        follow = ", ".join(f"{n} of {contract}" for contract, n in group.follow.items())
        of = f"{', '.join(names[:most])}{more}{f'; {follow} follow' if follow else ''}"
        return f"| {group.kind:12} | {group.contract:24} | {len(group.tests):5} | {of} |"

    def example(self, test: str, most: int | None = None) -> Iterator[str]:
        """What a test says, the lines that show it, and how it is run again."""
        one = self.tree[test]
        yield from ["", *textwrap.wrap(f"{test.partition('::')[2]}: {one.said}", WIDTH)]
        if one.expected:
            yield from ["", *textwrap.wrap(f"The release fails this test too. {one.expected}", WIDTH)]
        # The first lines of a program on a cache define what the others call.
        _, begins, program = one.lines.rpartition("\ncaches = ")
        lines = (begins.lstrip() + program if most else one.lines).splitlines()[:most]
        yield from ["", *(f"    {line}" for line in lines)] if lines else []
        yield from ["", f"    {self.again(test)}"]

    def screen(self) -> str:
        lines = [*self.begin(), *(self.row(group, NAMES) for group in self.groups[:ROWS])]
        lines += [f"and {len(self.groups) - ROWS} more rows"] * (len(self.groups) > ROWS)
        # Programs on caches come first, and are the shortest that fail.
        return "\n".join([*lines, *(self.example(self.bad[0].tests[0], LINES) if self.bad else [])])

    def markdown(self) -> str:
        """All of it."""
        head = ["| | contract | tests | of |", "| --- | --- | --- | --- |"]
        lines = ["\n\n".join(self.begin()), *head, *(self.row(group, 99) for group in self.groups)]
        for group in self.groups:
            if group.kind in (*BAD, NOT_KEPT, STOPPED, CHANGED):
                lines += ["", f"<details><summary>{group.kind}: {group.contract}</summary>"]
                lines += [line for test in group.tests for line in self.example(test)]
                lines += ["", "</details>"]
        lines += ["", "| file | changed lines | ran | never called |", "| --- | --- | --- | --- |"]
        for file in self.files:
            never = ", ".join(name for _, name in file.never)
            lines.append(f"| {file.name} | {file.changed} | {file.ran} | {never} |")
        return "\n".join(lines) + "\n"
