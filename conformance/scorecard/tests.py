"""The files that test contracts, by their folders and marks: docs/contracts.md is made with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conformance import ROOT


def files() -> Iterator[str]:
    """A line for each file: the contracts of its folder and its marks, and what the judge calls its tests."""
    for path in sorted((ROOT / "conformance").rglob("test_*.py")):
        if path.parent.name == "repository":
            continue
        text = path.read_text("utf-8")
        judged = set(re.findall(r'mark\.asked\("(C\d+ [^"]*)"', text))
        found = {name.split()[0] for name in judged} | set(re.findall(r'mark\.contract\("(C\d+)"\)', text))
        found |= {name.upper() for name in re.findall(r"^(c\d+)_", path.parent.name)}
        names = [", ".join(sorted(some, key=lambda name: (int(name[1:].split()[0]), name))) for some in (found, judged)]
        if found:
            yield f"- {path.relative_to(ROOT).as_posix()}: {names[0]}" + (f" ({names[1]})" if judged else "")


def show() -> None:
    print("\n" + "\n".join(files()) + "\n")
