"""Install mlx-lm: into .venv, into the environment of tox that runs this, or for the judge.

Without options it installs the default release with the series, from the checkout of apply.sh.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, requires
from pathlib import Path

from checkout import Stamp, git, head
from pin import VENDOR, Refused, ended, find_release, make_venv, of_this_python, pip_command, releases, run, temporary

# What an environment has, in it.
STAMP = ".prompt-lookup.json"
# The suite needs these packages to ask.
NEEDS = ("coverage>=7.10", "hypothesis>=6.100", "pytest>=8", "pytest-xdist>=3.6", "requests")
RELEASE = re.compile(r"\d+(\.\d+)+\w*")
IGNORED = (".git", ".venv", "venv", "build", "dist", "__pycache__", "*.egg-info", ".tox")
QUIET = ("--quiet", "--disable-pip-version-check")


def mlx_extra() -> str:
    """The extra of mlx-lm that installs mlx. macOS needs none: there mlx is a dependency."""
    if platform.system() == "Darwin":
        return ""
    extra = os.environ.get("MLX_EXTRA", "cpu")
    if extra not in ("cpu", "cuda12", "cuda13"):
        raise Refused(f"MLX_EXTRA is {extra!r}; it can be cpu, cuda12 or cuda13.")
    return f"[{extra}]"


def build_wheel(where: Path, commit: str, label: str = "") -> Path:
    """Build the wheel of a commit, or without one of the files as they are, once. It builds a copy of them."""
    with temporary("build") as scratch:
        copy, digest = scratch / "source", hashlib.sha256(commit.encode())
        if commit:
            git(scratch, "clone", "--quiet", "--shared", "--no-checkout", where, copy)
            git(copy, "checkout", "--quiet", "--detach", commit)
        else:
            shutil.copytree(where, copy, ignore=shutil.ignore_patterns(*IGNORED), symlinks=True)
            for path in sorted(path for path in copy.rglob("*") if path.suffix in (".py", ".toml", ".cfg")):
                digest.update(path.relative_to(copy).as_posix().encode() + b"\0" + path.read_bytes())
        if not (copy / "mlx_lm").is_dir():
            raise Refused(f"{where}{f' at {commit}' * bool(commit)} has no mlx_lm in it.")
        key = commit[:12] or digest.hexdigest()[:12]
        folder = VENDOR / "wheels" / (key if label else f"tree-{key}")
        label = label or f"{version_of(copy)}+tree.{key[:8]}"
        # A tree may give it another name, whatever version it is told.
        if made := sorted(folder.glob("*.whl")):
            return made[0]
        print(f"building the wheel of {label}", flush=True)
        pip = [*pip_command(scratch), *QUIET, "wheel", "--no-deps", "--wheel-dir", scratch]
        run(*pip, copy, env=os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": label})
        (wheel,) = scratch.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(wheel, folder / wheel.name)
    return folder / wheel.name


def pip_install(python: Path, source: str, *needs: str) -> None:
    """Install mlx-lm of a version ("==0.32.2"), or from the URL of a wheel ("@ URL"), and what it needs."""
    pip: list[str | Path] = [python, "-m", "pip", *QUIET]
    if source.startswith("@"):
        # Two trees can have the same version. pip would keep the old one.
        run(*pip, "uninstall", "--yes", "mlx-lm")
    # Somebody who waits for it sees how far it is, also in the log of a CI.
    run(*pip, "--verbose", "install", f"mlx-lm{mlx_extra()} {source}", *needs, shown=True)


def installed(venv: Path, wanted: object) -> bool:
    """Whether a venv of this Python has what is wanted, nothing was interrupted and no file is gone."""
    stamp = venv / STAMP
    return is_whole(venv) and stamp.exists() and json.loads(stamp.read_text()) == wanted


def is_whole(venv: Path) -> bool:
    """Whether a venv of this Python has all files of its packages. Compiled ones are made again."""
    found = distributions(path=[str(folder) for folder in venv.glob("lib/*/site-packages")])
    files = (file for package in found for file in package.files or () if file.suffix != ".pyc")
    return of_this_python(venv) and all(Path(str(file.locate())).exists() for file in files)


def install(venv: Path, wanted: object, name: str, *source: str) -> None:
    """Install into a venv. The stamp is written last, so that an interrupted run repeats this step."""
    print(f"installing {name}: up to 60 MB to download, 100 MB on a Mac, more with CUDA", flush=True)
    (venv / STAMP).unlink(missing_ok=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    if venv.exists() and not is_whole(venv):
        # pip would take a package for installed, or another Python's library for one that this one can load.
        shutil.rmtree(venv)
    make_venv(venv)
    pip_install(venv / "bin" / "python", *source)
    (venv / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")


def source(name: str) -> str:
    """What pip installs a release from, a tree in its current state, or a commit of a clone."""
    if RELEASE.fullmatch(name):
        return f"=={name}"
    where, ref = _place(name)
    if not (where / "mlx_lm").is_dir() and not ref:
        raise Refused(f"{name} is no release, no directory with mlx_lm in it and no DIRECTORY@REF.")
    return f"@ {build_wheel(where, _commit(where, ref) if ref else '').as_uri()}"


@contextmanager
def environment(name: str) -> Iterator[Path]:
    """Make or update a folder with a venv with a tree. It stays as it is until the end of the block."""
    where, ref = _place(name)
    identity = name if RELEASE.fullmatch(name) else f"{where}@{ref}"
    short = re.sub(r"[^\w.]+", "-", name).strip("-.")[-40:]
    at = VENDOR / "judged" / f"{short}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    venv, wanted = at / "venv", {"source": source(name), "extra": mlx_extra(), "needs": list(NEEDS)}
    at.mkdir(parents=True, exist_ok=True)
    with (at / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not installed(venv, wanted):
            # Another judge may install it, or use what is there.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not installed(venv, wanted):
                install(venv, wanted, name, source(name), *NEEDS)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield at


def base_of(name: str, upstream: Path | None = None) -> str:
    """Where a branch began, or the release before. With a clone of upstream, the newest commit that this has too."""
    if RELEASE.fullmatch(name):
        with temporary("before") as scratch:
            pip = [*pip_command(scratch), "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
            done = run(*pip, "--report", "-", f"mlx-lm<{name}", check=False)
        if done.returncode:
            raise Refused(f"no release before {name} was found on the package index: --base names one.")
        return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])
    where, ref = _place(name)
    release = version_of(where) if version_of(where) != "0" else releases()[1]
    if git(where, "rev-parse", "--show-toplevel", check=False).stdout.strip() != str(where):
        return release
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
    return f"{source}@{tag}" if tag else release


def _mains(where: Path) -> list[str]:
    """The main branches of upstream, or else of a clone and of its other remotes."""
    names = git(where, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").stdout.split()
    mains = [name for name in names if name.rpartition("/")[2] == "main"]
    urls = [line.split() for line in git(where, "remote", "--verbose").stdout.splitlines()]
    followed = {name for name, url, _ in urls if name == "upstream" or "ml-explore/mlx-lm" in url}
    return [name for name in mains if name.partition("/")[0] in followed] or mains


def _place(name: str) -> tuple[Path, str]:
    source, _, ref = name.partition("@")
    return Path(source).expanduser().resolve(), ref


def _commit(where: Path, ref: str) -> str:
    found = git(where, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
    if found.returncode:
        raise Refused(f"{where} has no commit {ref}.")
    return found.stdout.strip()


def version_of(tree: Path) -> str:
    """The release that a tree was made from, if a file of it says that."""
    file = tree / "mlx_lm" / "_version.py"
    found = re.search(r"""__version__ = ["'](\d+(\.\d+)*)""", file.read_text()) if file.exists() else None
    return found[1] if found else "0"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    what = options.add_mutually_exclusive_group()
    what.add_argument("--release", help="a release of vendor/releases.toml (default: the one it names)")
    what.add_argument("--checkout", type=lambda name: Path(name).resolve(), help="a checkout that scripts/port.sh made")
    what.add_argument("--tree", help="a release, a directory or DIRECTORY@REF as it is")
    options.add_argument("--stock", action="store_true", help="the release as it is, without the series")
    options.add_argument("--lowest-mlx", action="store_true", help="with the oldest mlx that the release allows")
    args = options.parse_args()
    python = Path(sys.executable)
    if args.tree:
        pip_install(python, source(args.tree))
        return 0
    checkout = args.checkout or find_release(args.release).checkout
    if (stamp := Stamp.read(checkout)) is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh or scripts/port.sh makes it.")
    count = git(checkout, "rev-list", "--count", f"{stamp.base}..HEAD").stdout.strip()
    label, commit = f"{version_of(checkout)}+lookup.{count}", head(checkout)
    if args.stock:
        label, commit = version_of(checkout), stamp.base
    pip_install(python, f"@ {build_wheel(checkout, commit, label).as_uri()}")
    if args.lowest_mlx:
        # Each extra names the same.
        (lowest,) = set(re.findall(r"(?m)^mlx(?:\[.*\])?>=([\d.]+)", "\n".join(requires("mlx-lm") or [])))
        run(python, "-m", "pip", *QUIET, "install", f"mlx{mlx_extra()}=={lowest}")
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
