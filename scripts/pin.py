"""The pinned releases of vendor/releases.toml, the patches, and how the scripts run programs and end."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENDOR, PATCHES, VENV = ROOT / "vendor", ROOT / "patches", ROOT / ".venv"
# How git, tar and pip name what is wrong with a disk and not with what they were asked to do.
DISK = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded|Read-only file system")
# Messages of pip without a network, or when it may not use one.
OFFLINE = re.compile(r"NewConnectionError|Failed to establish|name resolution|\(from versions: none\)|Max retries")


class Refused(Exception):
    """The user has to decide or fix something. The message says what."""


def parser(script: str, doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser whose help is the text at the top of a script, as it is written there."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"scripts/{script}", description=doc, formatter_class=form, **options)


def ended(command: Callable[[], int], refused: int = 1) -> int:
    """Run a command and return its exit status. What stops it is one sentence, not a traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        print("\nerror: stopped. Nothing is left half done: run the same command again.", file=sys.stderr)
        return 130
    except Refused as error:
        said = str(error)
    except OSError as error:
        # A full disk, or a folder that nobody may write to.
        said = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    print(f"error: {said}", file=sys.stderr)
    return refused


def run(
    *command: str | Path, env: dict[str, str] | None = None, check: bool = True, shown: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program. ``shown`` leaves its standard output on the screen. Without ``check`` it may fail, for want of
    anything but a disk."""
    out = None if shown else subprocess.PIPE
    done = subprocess.run(command, env=env, stdout=out, stderr=subprocess.PIPE, text=True)
    if done.returncode and (trouble := DISK.search(done.stderr)):
        raise Refused(f"{trouble[0]}: {ROOT} or the folder of temporary files cannot be written to.")
    if done.returncode and check:
        if "pip" in command and OFFLINE.search(done.stderr):
            why = "pip could not download packages: is the network there? Then run the same command again. It says: "
            raise Refused(why + reason(done.stderr))
        said = (done.stderr.strip() or (done.stdout or "").strip()).splitlines()[-12:]
        raise Refused(f"{' '.join(map(str, command[:6]))} failed: " + "\n".join(said))
    return done


def reason(said: str) -> str:
    """The last error that pip names."""
    errors = [line for line in said.splitlines() if "ERROR: " in line] or said.splitlines() or [""]
    return errors[-1].strip().removeprefix("ERROR: ")


@dataclass(frozen=True)
class Release:
    version: str
    # Of its sdist; empty if it is not pinned.
    sha256: str

    @property
    def sdist(self) -> Path:
        return VENDOR / "sdist" / f"mlx_lm-{self.version}.tar.gz"

    @property
    def checkout(self) -> Path:
        return VENDOR / f"mlx-lm-{self.version}"

    @property
    def patches(self) -> Path:
        """The folder for the exported commits of its checkout."""
        return PATCHES if self.version == releases()[1] else PATCHES / self.version


def releases() -> tuple[dict[str, Release], str]:
    """The pinned releases by version, and the default version."""
    pin = tomllib.loads((VENDOR / "releases.toml").read_text())
    return {v: Release(v, entry["sha256"]) for v, entry in pin["releases"].items()}, pin["default"]


def find_release(version: str | None) -> Release:
    known, default = releases()
    if (version or default) not in known:
        raise Refused(f"mlx-lm {version} is not pinned; vendor/releases.toml has {', '.join(known)}.")
    return known[version or default]


def command_for(script: str, folder: Path) -> str:
    """The command of a script for the release that a folder of patches belongs to."""
    return f"scripts/{script}" + ("" if folder == PATCHES else f" --release {folder.name}")


def patch_files(version: str = "", stage: str | None = None) -> list[Path]:
    """The patches in order, up to the end of a stage. A release can have its own form of a patch."""
    names = (PATCHES / "series").read_text().split()
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    if stage is not None and stage not in stages:
        raise Refused(f"--stage {stage}: the stages are {', '.join(stages)}.")
    kept = stages[: stages.index(stage) + 1] if stage else stages
    own = PATCHES / version
    kept_names = [name for name in names if name.split("/")[0] in kept]
    return [own / name if (own / name).exists() else PATCHES / name for name in kept_names]


def patch_name(patch: Path) -> str:
    """The line of a patch in the series, also of a release's own form of it."""
    return f"{patch.parent.name}/{patch.name}"


def fetch(release: Release) -> Release:
    """Download the sdist unless it is there. Returns the release with the hash of the file, which is the pinned one."""
    if not release.sdist.exists():
        print(f"downloading mlx-lm {release.version}", flush=True)
        with temporary("fetch") as scratch:
            download(scratch, f"mlx-lm=={release.version}", release.sha256, "--no-binary")
            release.sdist.parent.mkdir(exist_ok=True)
            os.replace(scratch / release.sdist.name, release.sdist)
    found = hashlib.sha256(release.sdist.read_bytes()).hexdigest()
    if release.sha256 not in ("", found):
        raise Refused(
            f"{release.sdist} has sha256 {found}, vendor/releases.toml has {release.sha256}. Nothing was changed. "
            "If the file is damaged, delete it and run this again."
        )
    return replace(release, sha256=found)


def download(into: Path, requirement: str, sha256: str, kind: str) -> None:
    """Download a file of the package index with pip, which checks its hash, if there is one."""
    wanted = into / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n" if sha256 else requirement)
    pip = [*pip_command(into), "download", "--no-deps", kind, requirement.partition("=")[0], "--dest", into]
    # Somebody who waits for it sees how far it is.
    done = run(*pip, "--disable-pip-version-check", "-r", wanted, check=False, shown=True)
    if done.returncode:
        why = f"could not be downloaded: is it there, and the network? pip says: {reason(done.stderr)}."
        if "DO NOT MATCH THE HASHES" in done.stderr:
            why = "on the package index does not have the pinned sha256."
        raise Refused(f"{requirement} {why} Nothing was changed.")


def pip_command(scratch: Path) -> list[str | Path]:
    """The pip of this Python. Some distributions ship Python without pip; then the pip of a new venv."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    make_venv(scratch / "venv")
    return [scratch / "venv" / "bin" / "python", "-m", "pip"]


def make_venv(path: Path) -> None:
    done = run(sys.executable, "-m", "venv", path, check=False)
    if done.returncode:
        # The pip of a venv does not say that the disk is full.
        why = "is python3-venv missing (Debian), or the disk full?"
        raise Refused(f"python -m venv failed: {why} It says: {(done.stdout + done.stderr).strip()}")


def of_this_python(venv: Path) -> bool:
    file = venv / "pyvenv.cfg"
    wanted = {f"executable = {os.path.realpath(sys.executable)}", f"version = {sys.version.split()[0]}"}
    return file.exists() and wanted <= set(file.read_text().splitlines())


@contextmanager
def temporary(what: str) -> Iterator[Path]:
    """A directory on the file system of vendor/, so that its content can be moved into place in one step."""
    path = Path(tempfile.mkdtemp(prefix=f".tmp-{what}-", dir=VENDOR))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def alone() -> Iterator[None]:
    """Allow one run at a time. Removes the files that interrupted runs left behind."""
    with open(VENDOR / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another run of these scripts is under way in this clone; wait for it.") from None
        for left in VENDOR.glob(".tmp-*"):
            shutil.rmtree(left)
        yield
