"""What a comparison of two judged trees says: on one screen, or as Markdown for a review. It needs no mlx."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from conformance.judging.compare import BAD, BROKE, GONE, MENDED, OFFERED, Group, differences, not_asked

WIDTH = 110
# Causes that are shown with their lines; the others are named.
SHOWN = 4
TITLES = {BROKE: "broke", GONE: "no longer", MENDED: "mended", OFFERED: "offered now"}
LIMIT = 5
# The contracts of cache classes: their lines end in a program.
PROGRAMS = ("C1 snapshot", "C2 trim", "C4 blocks")

Judged = dict[str, Any]


def parts(cases: list[str]) -> str:
    """What the cases are about, each once, in a few words."""
    names = list(dict.fromkeys(case.partition(": ")[2].partition(",")[0] for case in cases))
    names = [name.removeprefix("the model ") for name in names]
    more = f" and {len(names) - LIMIT} more" if len(names) > LIMIT else ""
    return ", ".join(dict.fromkeys(names[:LIMIT])) + more


def counted(cases: Collection[str]) -> str:
    return f"{len(cases)} case{'s' * (len(cases) != 1)}"


def follow(group: Group) -> str:
    found = Counter(case.partition(": ")[0] for case in group.follow)
    return f"; {', '.join(f'{n} of {contract}' for contract, n in found.items())} follow from it" if found else ""


def summary(group: Group) -> str:
    cause = f", as {group.cause} fails, which it does on the base too" if group.cause else ""
    return f"{group.contract}: {counted(group.cases)}, {parts(group.cases)}{cause}{follow(group)}"


def head(base: Judged, tree: Judged, names: tuple[str, str]) -> list[str]:
    sides = [
        f"{what} {name}: mlx-lm {one['mlx-lm']} through {one['adapter']}, {counted(one['cases'])} in {one['seconds']} s"
        for what, name, one in zip(("tree", "base"), reversed(names), (tree, base), strict=True)
    ]
    return [*sides, f"mlx {tree['mlx']} on {tree['device']}"]


def standing(tree: Judged) -> str:
    results = Counter(outcome["result"] for outcome in tree["cases"].values())
    order = ("holds", "broken", "refused", "not offered", "not shown", "not asked")
    return ", ".join(f"{results[result]} {result}" for result in order if results[result])


def verdict(groups: list[Group]) -> str:
    bad = [group for group in groups if group.kind in BAD]
    if bad:
        contracts = ", ".join(dict.fromkeys(group.contract for group in bad))
        return f"BROKEN: {contracts}."
    return "Nothing broke." if groups else "Nothing differs."


def screen(base: Judged, tree: Judged, names: tuple[str, str]) -> str:
    groups = differences(base["cases"], tree["cases"])
    lines = [*head(base, tree, names), f"the tree: {standing(tree)}", ""]
    for kind, title in TITLES.items():
        for i, group in enumerate(one for one in groups if one.kind == kind):
            lines += wrapped(f"{title if i == 0 else '':12}{summary(group)}")
            if kind in BAD and i < SHOWN:
                lines += example(group)
            elif kind in BAD:
                lines += wrapped(f"{'':14}{group.example}: {group.said}")
    lines += [line for one in unasked(base, tree) for line in wrapped(f"not asked   {one}")]
    if missing := not_asked(base["cases"], tree["cases"]):
        lines.append(f"{'':12}{missing} cases of the base are not those of this adapter, and were not compared")
    return "\n".join([*lines, "", verdict(groups)])


def unasked(base: Judged, tree: Judged) -> list[str]:
    """The parts that could not be asked of one of the two."""
    return [
        f"{part} of the {what}: {why}"
        for what, one in (("tree", tree), ("base", base))
        for part, why in one.get("unasked", {}).items()
    ]


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * 14, drop_whitespace=True, break_on_hyphens=False)


def example(group: Group) -> Iterator[str]:
    yield from wrapped(f"{'':14}{group.example}: {group.said}")
    # The program of a cache; all that it needs, and the decodes, are in the files.
    steps = group.lines.partition("\ncaches = ")[2]
    if steps and group.contract in PROGRAMS:
        yield from (f"{'':16}{line}" for line in f"caches = {steps}".splitlines())


def reproductions(base: Judged, tree: Judged, folder: Path) -> list[Path]:
    """Write the lines of each cause to a file, and return the files."""
    for old in folder.glob("*.py"):
        old.unlink()
    found = []
    groups = [one for one in differences(base["cases"], tree["cases"]) if one.kind in BAD and one.lines]
    for number, group in enumerate(groups, 1):
        folder.mkdir(parents=True, exist_ok=True)
        found.append(folder / f"{number}-{group.contract.replace(' ', '-')}.py")
        found[-1].write_text(f"# {group.example}\n{group.lines}\n", "utf-8")
    return found


def markdown(base: Judged, tree: Judged, names: tuple[str, str]) -> str:
    groups = differences(base["cases"], tree["cases"])
    lines = [f"**{verdict(groups)}** `{names[1]}` against `{names[0]}`", ""]
    lines += [f"- {line}" for line in [*head(base, tree, names), f"the tree: {standing(tree)}"]]
    lines += [f"- not asked: {one}" for one in unasked(base, tree)]
    lines += ["", "| | contract | cases | what |", "| --- | --- | --- | --- |"]
    for group in groups:
        about = f"{parts(group.cases)}{follow(group)}" + (
            f"; {group.cause} fails on the base too" if group.cause else ""
        )
        lines.append(f"| {TITLES[group.kind]} | {group.contract} | {len(group.cases)} | {about} |")
    for group in groups:
        if group.kind in BAD:
            lines += ["", f"{group.example}: {group.said}"]
            lines += ["", "```python", group.lines, "```"] if group.lines else []
    return "\n".join(lines) + "\n"
