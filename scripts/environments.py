"""Make an environment for each tree to judge: a venv below vendor/judged with the tree and mlx. It is kept.

python scripts/environments.py TREE installs a tree into the environment of that Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from checkout import git
from install import install, installed, mlx_extra, pip_install
from pin import VENDOR, Refused, ended, pip_command, releases

JUDGED = VENDOR / "judged"
# The suite needs these packages to ask.
NEEDS = ("coverage>=7.10", "hypothesis>=6.100", "pytest>=8", "requests")
RELEASE = re.compile(r"\d+(\.\d+)+\w*")
# The address of a remote whose main branch is that of upstream.
UPSTREAM = "ml-explore/mlx-lm"
IGNORED = (".git", ".venv", "venv", "build", "dist", "__pycache__", "*.egg-info", ".tox")


@dataclass(frozen=True)
class Environment:
    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def package(self) -> Path:
        """The installed files of mlx_lm."""
        return next((self.folder / "venv" / "lib").glob("python*/site-packages/mlx_lm"))


@dataclass(frozen=True)
class Source:
    """What pip installs a tree from, with these variables, and a key that changes with its content."""

    identity: str
    key: str
    pip: str
    env: dict[str, str]


@contextmanager
def source(name: str) -> Iterator[Source]:
    """A tree in its current state, or a release."""
    JUDGED.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=JUDGED, prefix=".tree-") as scratch:
        if RELEASE.fullmatch(name):
            yield Source(name, name, f"=={name}", {})
            return
        where, ref = _place(name)
        if not (where / "mlx_lm").is_dir() and not ref:
            raise Refused(f"{name} is no release, no directory with mlx_lm in it and no DIRECTORY@REF.")
        label, key = _unpack(where, ref, Path(scratch) / "tree")
        version = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": label}
        yield Source(f"{where}@{ref}", key, f"@ {(Path(scratch) / 'tree').as_uri()}", version)


@contextmanager
def environment(name: str) -> Iterator[Environment]:
    """Make or update an environment with a tree. It stays as it is until the end of the block."""
    with source(name) as made:
        at = _folder(name, made.identity)
        wanted = {"key": made.key, "extra": mlx_extra(), "needs": list(NEEDS)}
        at.folder.mkdir(exist_ok=True)
        with (at.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not installed(at.folder / "venv", wanted):
                fcntl.flock(lock, fcntl.LOCK_UN)
                _wait(lock, name)
                if not installed(at.folder / "venv", wanted):
                    install(at.folder / "venv", wanted, at.name, made.pip, *NEEDS, env=made.env)
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield at


def _wait(lock: IO[str], name: str) -> None:
    """Wait for those who ask an environment that has to be changed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another judge of {name}", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def base_of(name: str, upstream: Path | None = None) -> str:
    """The tree that another one is compared with: where a branch began, or the release before.

    With a clone of upstream, it is the newest commit that this clone has too.
    """
    if RELEASE.fullmatch(name):
        return _release_before(name)
    where, ref = _place(name)
    if git(where, "rev-parse", "--show-toplevel", check=False).stdout.strip() != str(where):
        return _release_of(where)
    source, commit = name.partition("@")[0], _commit(where, ref or "HEAD")
    if upstream is not None:
        for one in git(where, "rev-list", commit).stdout.split():
            if git(upstream, "cat-file", "-e", one, check=False).returncode == 0:
                return f"{source}@{one[:12]}"
        raise Refused(f"{upstream} has no commit of {name}.")
    changed = not ref and bool(git(where, "status", "--porcelain").stdout.strip())
    began = [git(where, "merge-base", commit, branch, check=False).stdout.strip() for branch in _mains(where)]
    if began := [start for start in began if start and (start != commit or changed)]:
        # The newest: a main that nobody updates is old.
        start = min(began, key=lambda start: int(git(where, "rev-list", "--count", f"{start}..{commit}").stdout))
        return f"{source}@{start[:12]}"
    tag = git(where, "describe", "--tags", "--abbrev=0", "--match", "v*", f"{commit}^", check=False).stdout.strip()
    return f"{source}@{tag}" if tag else _release_of(where)


def _mains(where: Path) -> list[str]:
    """The main branches of upstream, or else of a clone and of its other remotes."""
    names = git(where, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").stdout.split()
    mains = [name for name in names if name.rpartition("/")[2] == "main"]
    urls = [line.split() for line in git(where, "remote", "--verbose").stdout.splitlines()]
    followed = {name for name, url, _ in urls if name == "upstream" or UPSTREAM in url}
    return [name for name in mains if name.partition("/")[0] in followed] or mains


def _release_of(where: Path) -> str:
    """The release that a tree was made from, or else the pinned default."""
    known = version_of(where)
    return known if known != "0" else releases()[1]


def _release_before(version: str) -> str:
    with TemporaryDirectory(dir=VENDOR) as scratch:
        pip = [*pip_command(Path(scratch)), "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        done = subprocess.run([*pip, "--report", "-", f"mlx-lm<{version}"], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"no release before {version} was found on the package index: --base names one.")
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def _place(name: str) -> tuple[Path, str]:
    source, _, ref = name.partition("@")
    return Path(source).expanduser().resolve(), ref


def _commit(where: Path, ref: str) -> str:
    found = git(where, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
    if found.returncode:
        raise Refused(f"{where} has no commit {ref}.")
    return found.stdout.strip()


def _folder(name: str, identity: str) -> Environment:
    short = re.sub(r"[^\w.]+", "-", name).strip("-.")[-40:]
    return Environment(name, JUDGED / f"{short}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}")


def _unpack(where: Path, ref: str, into: Path) -> tuple[str, str]:
    """Copy a tree. Returns its version and a key that changes with its content."""
    if ref:
        commit = _commit(where, ref)
        git(where.parent, "clone", "--quiet", "--shared", "--no-checkout", str(where), str(into))
        git(into, "checkout", "--quiet", "--detach", commit)
        shutil.rmtree(into / ".git")
    else:
        shutil.copytree(where, into, ignore=shutil.ignore_patterns(*IGNORED), symlinks=True)
    if not (into / "mlx_lm").is_dir():
        raise Refused(f"{where}{f' at {ref}' if ref else ''} has no mlx_lm in it.")
    digest = hashlib.sha256()
    files = sorted(path for path in into.rglob("*") if path.suffix in (".py", ".toml", ".cfg") and path.is_file())
    for path in files:
        digest.update(path.relative_to(into).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{version_of(into)}+tree.{digest.hexdigest()[:8]}", digest.hexdigest()


def version_of(tree: Path) -> str:
    """The release that a tree was made from, if a file of it says that."""
    file = tree / "mlx_lm" / "_version.py"
    found = re.search(r"""__version__ = ["'](\d+(\.\d+)*)""", file.read_text()) if file.exists() else None
    return found[1] if found else "0"


def main() -> int:
    (name,) = sys.argv[1:]
    with source(name) as made:
        pip_install(Path(sys.executable), made.pip, env=made.env)
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
