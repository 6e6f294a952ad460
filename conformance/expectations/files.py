"""Find the file of conformance/expectations for a version. This module needs no pytest."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
# The kind of an expected failure, by the start of its reason, in the order of a verdict.
KINDS = {"No such API: ": "no such API", "Wrong: ": "wrong", "Upstream model fault, ": "wrong", "Refused: ": "refused"}


def kind(reason: str) -> str:
    """The kind of a reason, or an empty string if the reason names none."""
    return next((word for start, word in KINDS.items() if reason.startswith(start)), "")


def numbers(version: str) -> tuple[int, ...]:
    """A sort key for versions: 0.33.0.dev1 lies between 0.32.2 and 0.33.0."""
    release, dev = re.match(r"[\d.]*\d|", version), bool(re.search(r"dev|rc|a|b", version))
    return (*map(int, release[0].split(".")), -1 if dev else 0) if release and release[0] else (0,)


def nearest(version: str, flavour: str, folder: Path = FOLDER) -> Path:
    """The file of a version, else of the newest release before it, else of the oldest release."""
    files = {path.name.removesuffix(f"-{flavour}.txt"): path for path in folder.glob(f"*-{flavour}.txt")}
    if version in files or not files:
        return files.get(version, folder / f"{version}-{flavour}.txt")
    ordered = sorted(files, key=numbers)
    before = [release for release in ordered if numbers(release) <= numbers(version)]
    return files[before[-1] if before else ordered[0]]
