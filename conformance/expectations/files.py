"""Which file of conformance/expectations a version has. It needs no pytest."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
# What an expected failure is, by the beginning of its reason, in the order in which they are told.
KINDS = {"No such API: ": "no such API", "Wrong: ": "wrong", "Upstream model fault, ": "wrong", "Refused: ": "refused"}


def kind(reason: str) -> str:
    """Which of the three it is; nothing where a reason does not say."""
    return next((word for start, word in KINDS.items() if reason.startswith(start)), "")


def numbers(version: str) -> tuple[int, ...]:
    """0.33.0.dev1 lies between 0.32.2 and 0.33.0."""
    release, dev = re.match(r"[\d.]*\d|", version), bool(re.search(r"dev|rc|a|b", version))
    return (*map(int, release[0].split(".")), -1 if dev else 0) if release and release[0] else (0,)


def nearest(version: str, flavour: str, folder: Path = FOLDER) -> Path:
    """The file of a version, or of the newest release before it, or of the oldest one."""
    files = {path.name.removesuffix(f"-{flavour}.txt"): path for path in folder.glob(f"*-{flavour}.txt")}
    if version in files or not files:
        return files.get(version, folder / f"{version}-{flavour}.txt")
    ordered = sorted(files, key=numbers)
    before = [release for release in ordered if numbers(release) <= numbers(version)]
    return files[before[-1] if before else ordered[0]]
