"""The table of patches/README.md: for each stage its patches, with their sizes, their tests and when they can go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pin import PATCHES, Refused, stage_of

BEGIN, END = "<!-- made by scripts/export.sh -->\n", "<!-- to here -->\n"
README = PATCHES / "README.md"


@dataclass(frozen=True)
class Patch:
    """What a patch says of itself."""

    name: str
    title: str
    drop_when: str
    tests: list[str]
    # The lines of Python that it adds outside of tests/, and in it.
    added: int
    added_tests: int


def read(folder: Path, name: str) -> Patch:
    text = (folder / name).read_text()
    message, _, diff = text.partition("\ndiff --git ")
    diff = f"\ndiff --git {diff}"
    subject = message.split("\nSubject: [PATCH] ", 1)[1]
    title = re.sub(r"\n\s+", " ", subject.split("\n\n", 1)[0])
    if (drop := re.search(r"^Drop-when: (.+(?:\n +.+)*)$", message, re.MULTILINE)) is None:
        raise Refused(f"the commit of {name} has no line 'Drop-when: ...' at the end of its message.")
    files = re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)
    sections = re.split(r"^diff --git a/", diff, flags=re.MULTILINE)[1:]
    added, added_tests = (
        sum(len(re.findall(r"^\+(?!\+\+ )", one, re.MULTILINE)) for one in sections if re.match(python, one))
        for python in (r"(?!tests/)\S+\.py ", r"tests/\S+\.py ")
    )
    tests = [file for file in files if re.match(r"tests/test_\w+\.py", file)]
    return Patch(name, title, re.sub(r"\s+", " ", drop[1]), tests, added, added_tests)


def table(folder: Path) -> str:
    """The table of the patches in a folder, a section for each stage."""
    patches = [read(folder, name) for name in (folder / "series").read_text().split()]
    stages = list(dict.fromkeys(stage_of(patch.name) for patch in patches))
    lines = []
    for stage in stages:
        of_it = [patch for patch in patches if stage_of(patch.name) == stage]
        lines += [f"## [{stage}]({stage}/README.md)", ""]
        lines += [f"{len(of_it)} patches, {sum(patch.added for patch in of_it)} added lines of code.", ""]
        lines += ["| Patch | Lines | Tests | Can be dropped when |", "| --- | --- | --- | --- |"]
        for patch in of_it:
            tests = ", ".join(test.removeprefix("tests/") for test in patch.tests)
            lines.append(f"| [{patch.title}]({patch.name}) | {patch.added} | {tests} | {patch.drop_when} |")
        lines.append("")
    return "\n".join(lines)


def with_table(readme: str, folder: Path) -> str:
    """The README with the table of the patches in a folder."""
    before, _, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise Refused(f"{README} lacks one of the lines that the table stands between.")
    return f"{before}{BEGIN}\n{table(folder)}\n{END}{after}"
