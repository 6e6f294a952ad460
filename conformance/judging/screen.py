"""What a comparison of two judged trees says: on one screen, and as Markdown for a review. It needs no mlx."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from dataclasses import dataclass

from conformance import ROOT
from conformance.judging.difference import BAD, NOT_KEPT, Group
from conformance.judging.ran import File, sentence
from conformance.judging.results import Results, part_of

WIDTH = 118
# The rows of the table and the lines of an example that a screen shows; the file has all.
ROWS, LINES, NAMES = 12, 12, 5


@dataclass
class Judgement:
    names: tuple[str, str]
    base: Results
    tree: Results
    groups: list[Group]
    files: list[File]
    # How one test is asked again, without its id, and how the judge is, without a part: programs and their arguments.
    pytest: list[str]
    judge: list[str]

    @property
    def bad(self) -> list[Group]:
        return [group for group in self.groups if group.kind in BAD]

    @property
    def example(self) -> str:
        """The first test that broke. Cache programs come first, and begin with the shortest."""
        return self.bad[0].tests[0] if self.bad else ""

    def verdict(self) -> str:
        against = f"{self.names[1]} against {self.names[0]}"
        if self.bad:
            return f"BROKEN: {', '.join(dict.fromkeys(group.contract for group in self.bad))}. {against}"
        return f"{'Nothing broke' if self.groups else 'Nothing differs'}. {against}"

    def again(self, test: str) -> str:
        """A command that shows it, typed here. What differs from the base alone only the judge can show."""
        if self.tree[test].differs:
            return shlex.join([*self.judge, "--only", part_of(test)])
        file, _, name = test.partition("::")
        return shlex.join([*self.pytest, f"{os.path.relpath(ROOT / file)}::{name}"])


def about(results: Results, group: Group, most: int) -> str:
    names = list(dict.fromkeys(results[test].notes.get("about", test) for test in group.tests))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    follow = ", ".join(f"{n} of {contract}" for contract, n in group.follow.items())
    return f"{', '.join(names[:most])}{more}{f'; {follow} follow' if follow else ''}"


def standing(results: Results) -> str:
    return ", ".join(f"{n} {word}" for word, n in Counter(one.outcome for one in results.values()).most_common())


def screen(judged: Judgement) -> str:
    lines = textwrap.wrap(sentence(judged.files), WIDTH)
    lines += [*textwrap.wrap(judged.verdict(), WIDTH), f"{len(judged.tree)} tests: {standing(judged.tree)}"]
    if judged.groups:
        lines += ["", f"{'':12} {'contract':24} {'tests':>5}  of"]
    for group in judged.groups[:ROWS]:
        row = f"{group.kind:12} {group.contract:24} {len(group.tests):5}  {about(judged.tree, group, NAMES)}"
        lines.append(textwrap.shorten(row, WIDTH, placeholder=" ...") if len(row) > WIDTH else row)
    if len(judged.groups) > ROWS:
        lines.append(f"{'':12} and {len(judged.groups) - ROWS} more rows")
    if test := judged.example:
        one = judged.tree[test]
        lines += ["", *textwrap.wrap(f"{test.partition('::')[2]}: {one.said}", WIDTH)]
        program = one.lines.partition("\ncaches = ")[2].splitlines()
        program = [f"caches = {program[0]}", *program[1:]] if program else []
        lines += [f"    {line[:WIDTH]}" for line in program[:LINES]]
        lines += ["", judged.again(test)]
    return "\n".join(lines)


def markdown(judged: Judgement) -> str:
    """All of it."""
    lines = [sentence(judged.files), "", f"**{judged.verdict()}**", "", f"The tree: {standing(judged.tree)}.", ""]
    lines += ["| | contract | tests | of |", "| --- | --- | --- | --- |"]
    for group in judged.groups:
        lines.append(f"| {group.kind} | {group.contract} | {len(group.tests)} | {about(judged.tree, group, 99)} |")
    for group in judged.groups:
        if group.kind in (*BAD, NOT_KEPT):
            lines += ["", f"<details><summary>{group.kind}: {group.contract}</summary>", ""]
            for test in group.tests:
                one = judged.tree[test]
                lines += [f"{test}: {one.said}", "", "```", one.lines or judged.again(test), "```", ""]
            lines.append("</details>")
    lines += ["", "| file | changed lines | ran | never called |", "| --- | --- | --- | --- |"]
    lines += [f"| {f.name} | {f.changed} | {f.ran} | {', '.join(f.uncalled)} |" for f in judged.files]
    lines += ["", *(f"- {said}" for said in peaks(judged))]
    return "\n".join(lines) + "\n"


def peaks(judged: Judgement) -> list[str]:
    """The models whose plain decoding takes a tenth more memory at its peak."""
    found = []
    for test, one in judged.tree.items():
        was, now = (int(side.get(test, one).notes.get("peak", 0)) for side in (judged.base, judged.tree))
        if now > 1.1 * was > 0:
            found.append(f"{one.notes.get('about', test)}: the peak memory is {now} bytes instead of {was}")
    return found
