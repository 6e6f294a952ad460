"""Build the wheel of a checkout and install it with the platform's mlx.

python scripts/install.py [--release V] installs the checkout of apply.sh into the environment of that Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from importlib.metadata import requires
from pathlib import Path

from checkout import Stamp, git, head
from pin import VENDOR, Refused, ended, find_release, made_by_this_python, make_venv, pip_command, run, temporary

QUIET = ("--quiet", "--disable-pip-version-check")


def mlx_extra() -> str:
    """The extra of mlx-lm that installs mlx. macOS needs none: there mlx is a dependency."""
    if platform.system() == "Darwin":
        return ""
    extra = os.environ.get("MLX_EXTRA", "cpu")
    if extra not in ("cpu", "cuda12", "cuda13"):
        raise Refused(f"MLX_EXTRA is {extra!r}; it can be cpu, cuda12 or cuda13.")
    return f"[{extra}]"


def build_wheel(checkout: Path, label: str, commit: str = "") -> Path:
    """Build the wheel of a commit, by default the last one, once. The checkout does not change: a copy is built."""
    commit = commit or head(checkout)
    folder = VENDOR / "wheels" / commit[:12]
    # A tree may give it another name, whatever version it is told.
    if made := sorted(folder.glob("*.whl")):
        return made[0]
    print(f"building the wheel of {label}", flush=True)
    with temporary("build") as scratch:
        git(scratch, "clone", "--quiet", "--shared", checkout, scratch / "source")
        git(scratch / "source", "checkout", "--quiet", "--detach", commit)
        pip = [*pip_command(scratch), *QUIET, "wheel", "--no-deps", "--wheel-dir", str(scratch)]
        run(*pip, scratch / "source", env=os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MLX_LM": label})
        (wheel,) = scratch.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(wheel, folder / wheel.name)
    return folder / wheel.name


def pip_install(python: Path, source: str, *needs: str, env: dict[str, str] | None = None) -> None:
    """Install mlx-lm of a version ("==0.32.2"), or from the URL of a wheel or a tree ("@ URL"), and what it needs."""
    pip = [str(python), "-m", "pip", *QUIET]
    if source.startswith("@"):
        # Two trees can have the same version. pip would keep the old one.
        run(*pip, "uninstall", "--yes", "mlx-lm")
    run(*pip, "install", f"mlx-lm{mlx_extra()} {source}", *needs, env=os.environ | (env or {}))


def _stamp(venv: Path) -> Path:
    return venv / ".prompt-lookup.json"


def installed(venv: Path, wanted: object) -> bool:
    """Whether a venv of this Python has what is wanted, and nothing was interrupted."""
    stamp = _stamp(venv)
    return made_by_this_python(venv) and stamp.exists() and json.loads(stamp.read_text()) == wanted


def install(venv: Path, wanted: object, name: str, *source: str, env: dict[str, str] | None = None) -> None:
    """Install into a venv. The stamp is written last, so that an interrupted run repeats this step."""
    print(f"installing {name}", flush=True)
    _stamp(venv).unlink(missing_ok=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    make_venv(venv)
    pip_install(venv / "bin" / "python", *source, env=env)
    _stamp(venv).write_text(json.dumps(wanted, indent=2) + "\n")


def lowest_mlx() -> str:
    """The oldest mlx that the installed mlx-lm allows."""
    bounds = set(re.findall(r"^mlx(?:\[.*\])?>=([\d.]+)", "\n".join(requires("mlx-lm") or []), re.MULTILINE))
    if len(bounds) != 1:
        raise Refused(f"mlx-lm names no one oldest mlx: {', '.join(sorted(bounds)) or 'none'}.")
    return f"mlx{mlx_extra()}=={bounds.pop()}"


def install_here(args: argparse.Namespace) -> int:
    """Install into the environment of this Python."""
    release = find_release(args.release)
    checkout = args.checkout or release.checkout
    stamp = Stamp.read(checkout)
    if stamp is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh or scripts/port.sh makes it.")
    if args.stock:
        commit, label = stamp.base, release.version
    else:
        # A clone's directory has a commit in the place of the version.
        version = re.fullmatch(r"mlx-lm-(\d+\..*)", checkout.name)
        count = git(checkout, "rev-list", "--count", f"{stamp.base}..HEAD").stdout.strip()
        commit, label = head(checkout), f"{version[1] if version else 0}+lookup.{count}"
    pip_install(Path(sys.executable), f"@ {build_wheel(checkout, label, commit).as_uri()}")
    if args.lowest_mlx:
        run(sys.executable, "-m", "pip", *QUIET, "install", lowest_mlx())
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--release", help="a release of vendor/releases.toml (default: the one it names)")
    what.add_argument("--checkout", type=lambda name: Path(name).resolve(), help="a checkout that scripts/port.sh made")
    parser.add_argument("--stock", action="store_true", help="the release as it is, without the series")
    parser.add_argument("--lowest-mlx", action="store_true", help="with the oldest mlx that the release allows")
    args = parser.parse_args()
    return ended(lambda: install_here(args))


if __name__ == "__main__":
    sys.exit(main())
