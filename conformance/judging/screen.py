"""What a comparison of two judged trees says: on one screen, and as Markdown for a review. It needs no mlx."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import threading
from collections import Counter
from dataclasses import dataclass

from conformance import ROOT
from conformance.judging.difference import BAD, BROKE, CHANGED, NOT_KEPT, STOPPED, Group
from conformance.judging.ran import File, sentence
from conformance.judging.results import BROKEN, NOT_FINISHED, Results, part_of

WIDTH = 118
# The rows of the table and the lines of an example that a screen shows; the file has all.
ROWS, LINES, NAMES = 12, 12, 5


class Progress:
    """How far the runs of both trees are: a line that is written over on a terminal, or else one for each tenth."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], int] = {}
        self.lock = threading.Lock()

    def say(self, tree: str, part: str, results: Results, n: int) -> None:
        told = Counter(one.outcome for one in results.values())
        wrong = f", {told[BROKEN]} broken" if told[BROKEN] else ""
        wrong += f", {told[NOT_FINISHED]} not finished" if told[NOT_FINISHED] else ""
        with self.lock:
            before, self.shown[tree, part] = self.shown.get((tree, part), -1), len(results)
            if sys.stdout.isatty():
                left = sorted(part for (_, part), done in self.shown.items() if done < n)
                print(
                    f"\r\033[K{tree}: {part} {len(results)} of {n}{wrong} ({', '.join(left)})"[:WIDTH],
                    end="",
                    flush=True,
                )
            elif n and (4 * len(results) // n > 4 * before // n or before < 0):
                print(f"{tree}: {part} {len(results)} of {n}{wrong}", flush=True)

    def end(self) -> None:
        print("\r\033[K" if sys.stdout.isatty() else "", end="", flush=True)


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

    @property
    def example(self) -> str:
        """The first test that broke. Cache programs come first, and begin with the shortest."""
        return self.bad[0].tests[0] if self.bad else ""

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


def about(results: Results, group: Group, most: int) -> str:
    names = list(dict.fromkeys(results[test].about or test for test in group.tests))
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
        lines.append(row if len(row) <= WIDTH else f"{row[: WIDTH - 4].rpartition(' ')[0]} ...")
    if len(judged.groups) > ROWS:
        lines.append(f"{'':12} and {len(judged.groups) - ROWS} more rows")
    if test := judged.example:
        one = judged.tree[test]
        lines += ["", *textwrap.wrap(f"{test.partition('::')[2]}: {one.said}", WIDTH)]
        # The first lines of a program on a cache define what the others call.
        _, begins, program = one.lines.rpartition("\ncaches = ")
        lines += [f"    {line[:WIDTH]}" for line in (begins.lstrip() + program).splitlines()[:LINES]]
        lines += ["", judged.again(test)]
    return "\n".join(lines)


def markdown(judged: Judgement) -> str:
    """All of it."""
    lines = [sentence(judged.files), "", f"**{judged.verdict()}**", "", f"The tree: {standing(judged.tree)}.", ""]
    lines += ["| | contract | tests | of |", "| --- | --- | --- | --- |"]
    for group in judged.groups:
        lines.append(f"| {group.kind} | {group.contract} | {len(group.tests)} | {about(judged.tree, group, 99)} |")
    for group in judged.groups:
        if group.kind in (*BAD, NOT_KEPT, STOPPED, CHANGED):
            lines += ["", f"<details><summary>{group.kind}: {group.contract}</summary>", ""]
            for test in group.tests:
                one = judged.tree[test]
                known = [f"Known of the release: {one.expected}", ""] if one.expected else []
                lines += [f"{test}: {one.said}", "", *known, "```", one.lines or judged.again(test), "```", ""]
            lines.append("</details>")
    lines += ["", "| file | changed lines | ran | never called |", "| --- | --- | --- | --- |"]
    lines += [f"| {f.name} | {f.changed} | {f.ran} | {', '.join(f.uncalled)} |" for f in judged.files]
    return "\n".join(lines) + "\n"
