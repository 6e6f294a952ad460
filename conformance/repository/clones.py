"""A copy of this repository to run the scripts in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import checkout

from conformance import ROOT
from conformance.series.patches import DEFAULT

# The first two stages. All patches take longer to apply.
FEW = 63
NAME = "a path with spaces"


@dataclass
class Clone:
    root: Path

    @classmethod
    def at(cls, root: Path, patches: int | None = FEW) -> Clone:
        """A copy with the first patches, and a checkout that has them."""
        for name in ("scripts", "patches", "vendor/sdist"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("vendor/releases.toml", "tox.ini", "pyproject.toml"):
            shutil.copy(ROOT / name, root / name)
        series, clone = root / "patches" / "series", cls(root)
        names = series.read_text().split()
        series.write_text("".join(f"{name}\n" for name in names[:patches]))
        for name in names[len(names[:patches]) :]:
            (root / "patches" / name).unlink()
        clone.apply()
        # The table of README.md has fewer patches.
        clone.works("export.sh")
        return clone

    def copy(self, to: Path, *without: str) -> Clone:
        """A copy of it in a path with spaces."""
        left_out = shutil.ignore_patterns("__pycache__", *without)
        return Clone(shutil.copytree(self.root, to / NAME, symlinks=True, ignore=left_out))

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {"PYTHON": sys.executable}

    def run(self, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script from another directory, as a user may."""
        command = [str(self.root / "scripts" / script), *args]
        return subprocess.run(command, cwd="/", env=self.env | env, capture_output=True, text=True)

    def works(self, script: str, *args: str, **env: str) -> str:
        done = self.run(script, *args, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *args: str) -> str:
        return self.works("apply.sh", "--no-install", *args)

    @property
    def checkout(self) -> Path:
        """The checkout of the default release."""
        return self.root / "vendor" / f"mlx-lm-{DEFAULT}"

    def git(self, *args: str) -> str:
        return git(self.checkout, *args)

    def patches(self) -> dict[str, bytes]:
        """The patches by their lines of the series, in order."""
        folder = self.root / "patches"
        names = (folder / "series").read_text().split()
        assert sorted(names) == sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch"))
        return {name: (folder / name).read_bytes() for name in names}

    def patch(self, number: int) -> Path:
        """The file of a patch, the first one is 1."""
        return self.root / "patches" / list(self.patches())[number - 1]

    def state(self) -> dict[str, int | str]:
        """When each file was written, except those of git, and the commit of the checkout."""
        found: dict[str, int | str] = {"HEAD": self.git("rev-parse", "HEAD") if self.checkout.exists() else ""}
        for folder, names, files in os.walk(self.root):
            names[:] = [name for name in names if name not in (".git", "__pycache__")]
            found |= {path: os.stat(path).st_mtime_ns for name in files if (path := f"{folder}/{name}")}
        # Each script writes it.
        found.pop(f"{self.root}/vendor/.lock", None)
        return found


def git(where: Path, *args: str | Path) -> str:
    return checkout.git(where, *args).stdout.strip()
