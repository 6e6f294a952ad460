"""Make an environment for each tree to judge: a venv below vendor/judged with the tree and mlx. It is kept."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from checkout import git
from install import mlx_extra, quiet_pip, run
from pin import VENDOR, Refused, make_venv, temporary

JUDGED = VENDOR / "judged"
# The suite needs these packages to send requests to a server.
NEEDS = ("requests",)
RELEASE = re.compile(r"\d+(\.\d+)+\w*")
IGNORED = (".git", ".venv", "venv", "build", "dist", "__pycache__", "*.egg-info", ".tox")


@dataclass(frozen=True)
class Environment:
    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def result(self, side: str) -> Path:
        """The file of the results. A tree can be its own base with another adapter, so each side has a file."""
        return self.folder / f"{side}.json"


def environment(name: str) -> Environment:
    """Make or update an environment with a tree in its current state."""
    if RELEASE.fullmatch(name):
        at = _folder(name, name)
        if _stale(at, name):
            _install(at, name, f"mlx-lm{mlx_extra()}=={name}")
        return at
    source, _, ref = name.partition("@")
    where = Path(source).expanduser().resolve()
    if not (where / "mlx_lm").is_dir() and not ref:
        raise Refused(f"{name} is no release, no directory with mlx_lm in it and no DIRECTORY@REF.")
    with temporary("tree") as scratch:
        label, key = _unpack(where, ref, scratch / "tree")
        at = _folder(name, f"{where}@{ref}")
        if _stale(at, key):
            version = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": label}
            _install(at, key, f"mlx-lm{mlx_extra()} @ {(scratch / 'tree').as_uri()}", version)
    return at


def _folder(name: str, identity: str) -> Environment:
    short = re.sub(r"[^\w.]+", "-", name).strip("-")[-40:]
    return Environment(name, JUDGED / f"{short}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}")


def _unpack(where: Path, ref: str, into: Path) -> tuple[str, str]:
    """Copy a tree. Returns its version and a key that changes with its content."""
    if ref:
        found = git(where, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
        if found.returncode:
            raise Refused(f"{where} has no commit {ref}.")
        commit = found.stdout.strip()
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
    return f"{_version(into)}+tree.{digest.hexdigest()[:8]}", digest.hexdigest()


def _version(tree: Path) -> str:
    """The release that a tree was made from, if a file of it says that."""
    file = tree / "mlx_lm" / "_version.py"
    found = re.search(r"""__version__ = ["'](\d+(\.\d+)*)""", file.read_text()) if file.exists() else None
    return found[1] if found else "0"


def _stamp(at: Environment) -> Path:
    return at.folder / "installed.json"


def _stale(at: Environment, key: str) -> bool:
    stamp = _stamp(at)
    return not stamp.exists() or json.loads(stamp.read_text()) != {"key": key, "extra": mlx_extra()}


def _install(at: Environment, key: str, what: str, env: dict[str, str] | None = None) -> None:
    """Install a tree or a wheel. The stamp is written last, so that an interrupted run starts again."""
    print(f"installing {at.name}", flush=True)
    _stamp(at).unlink(missing_ok=True)
    at.folder.mkdir(parents=True, exist_ok=True)
    if not at.python.exists():
        make_venv(at.folder / "venv")
    pip = [*quiet_pip(at.python), "install"]
    run(*pip, what, *NEEDS, env=env)
    if " @ " in what:
        run(*pip, "--force-reinstall", "--no-deps", what.partition(" @ ")[2], env=env)
    _stamp(at).write_text(json.dumps({"key": key, "extra": mlx_extra()}) + "\n")
