"""A copy of this repository to run the scripts in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from conformance import ROOT


@dataclass
class Clone:
    root: Path

    @classmethod
    def made(cls, root: Path) -> Clone:
        for name in ("scripts", "patches", "vendor/sdist"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "vendor" / "releases.toml", root / "vendor")
        (root / "vendor" / ".lock").touch()
        return cls(root)

    def run(self, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script from another directory, as a user may."""
        return subprocess.run(
            [self.root / "scripts" / script, *args], cwd="/", env=self.env(env), capture_output=True, text=True
        )

    def env(self, more: dict[str, str]) -> dict[str, str]:
        return os.environ | {"PYTHON": sys.executable} | more

    def apply(self, *args: str) -> str:
        done = self.run("apply.sh", "--no-install", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, script: str, *args: str, **env: str) -> str:
        """Run a script that has to fail. It must give one clear message and change nothing."""
        before = self.state()
        done = self.run(script, *args, **env)
        assert done.returncode == 1, done.stdout
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert self.state() == before
        return done.stderr

    @property
    def checkout(self) -> Path:
        """The checkout of the default release."""
        default = tomllib.loads((self.root / "vendor" / "releases.toml").read_text())["default"]
        return self.root / "vendor" / f"mlx-lm-{default}"

    def git(self, *args: str) -> str:
        return git(self.checkout, *args)

    def commit_line(self, text: str) -> None:
        with open(self.checkout / "mlx_lm" / "draft" / "loop.py", "a") as file:
            file.write(f"# {text}\n")
        stage = list(self.patches())[-1].split("/")[0]
        self.git("commit", "--all", "--message", f"{text}\n\nStage: {stage}\nDrop-when: never")

    def patches(self) -> dict[str, bytes]:
        """The patches by their lines of the series, in order."""
        folder = self.root / "patches"
        names = (folder / "series").read_text().split()
        assert sorted(names) == sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch"))
        return {name: (folder / name).read_bytes() for name in names}

    def patch(self, number: int) -> Path:
        """The file of a patch, the first one is 1."""
        return self.root / "patches" / list(self.patches())[number - 1]

    def state(self) -> dict[str, bytes]:
        """All files except those of git, and the state of the checkout in git."""
        files = {
            str(path): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and ".git/" not in str(path) and "__pycache__" not in str(path)
        }
        return files | ({"HEAD": self.git("rev-parse", "HEAD").encode()} if self.checkout.exists() else {})


def git(where: Path, *args: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", where, *identity, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
