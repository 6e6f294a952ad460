"""The patches, and the default release's checkout that scripts/apply.sh made from them."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASE = tomllib.loads((ROOT / "vendor" / "releases.toml").read_text())["default"]
CHECKOUT = ROOT / "vendor" / f"mlx-lm-{RELEASE}"
PATCHES = sorted((ROOT / "patches").glob("[0-9]*.patch"))


def git(*args: str) -> bytes:
    return subprocess.run(["git", "-C", CHECKOUT, *args], capture_output=True, check=True).stdout


def commits() -> list[str]:
    """The release, then one commit a patch."""
    return git("rev-list", "--reverse", "HEAD").decode().split()


def unpack(commit: str, into: Path) -> Path:
    """Write the files of a commit into a directory."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(into, filter="data")
    return into
