"""The patches, and the checkout that scripts/apply.sh makes from them."""

from __future__ import annotations

import io
import re
import subprocess
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from conformance import ROOT

PIN = tomllib.loads((ROOT / "vendor" / "releases.toml").read_text())
DEFAULT, RELEASES = PIN["default"], list(PIN["releases"])
PATCHES = [ROOT / "patches" / name for name in (ROOT / "patches" / "series").read_text().split()]


def name_of(patch: Path) -> str:
    """The line of a patch in the series, without the ending."""
    return f"{patch.parent.name}/{patch.stem}"


def own_tests(patch: str) -> list[str]:
    """The test files that a patch changes."""
    return re.findall(r"^\+\+\+ b/(tests/test_\w+\.py)$", patch, re.MULTILINE)


def checkout() -> Path:
    """The checkout of the installed mlx-lm, or of the default release if none is installed."""
    try:
        release = (version("mlx-lm") or DEFAULT).split("+")[0]
    except PackageNotFoundError:
        release = DEFAULT
    return ROOT / "vendor" / f"mlx-lm-{release}"


def git(*args: str) -> bytes:
    return subprocess.run(["git", "-C", checkout(), *args], capture_output=True, check=True).stdout


def commits() -> list[str]:
    """The commit of the release, then one commit for each patch."""
    return git("rev-list", "--reverse", "HEAD").decode().split()


def unpack(commit: str, into: Path) -> Path:
    """Write the files of a commit into a directory. Extracting a zip file is safe on every Python."""
    with zipfile.ZipFile(io.BytesIO(git("archive", "--format=zip", "-0", commit))) as archive:
        archive.extractall(into)
    return into
