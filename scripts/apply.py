"""Apply the patches to a release of mlx-lm, build it, install it into .venv and run a demo."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from checkout import (
    BRANCH,
    Stamp,
    apply_patches,
    changes,
    git,
    head,
    import_release,
    is_as_made,
    lend_default,
    place,
    series_key,
)
from install import build_wheel, install, installed, mlx_extra
from pin import (
    PATCHES,
    ROOT,
    VENV,
    Refused,
    Release,
    alone,
    ended,
    export_command,
    fetch,
    find_release,
    patch_files,
    patch_name,
    temporary,
)


def main() -> int:
    args = parse_args()
    return ended(lambda: apply(args))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/apply.sh", description=__doc__)
    parser.add_argument("--release", metavar="V", help="a release of vendor/releases.toml (default: its default)")
    parser.add_argument(
        "--stage", metavar="NAME", help="stop after a stage, a folder of patches/ (default: the last one)"
    )
    parser.add_argument("--no-install", action="store_true", help="only make the patched source")
    return parser.parse_args()


def apply(args: argparse.Namespace) -> int:
    if not args.no_install:
        mlx_extra()
    with alone():
        return apply_release(args)


def apply_release(args: argparse.Namespace) -> int:
    release = find_release(args.release)
    patches = patch_files(release.version, args.stage)
    key = series_key(release.sha256, patches)
    checkout = release.checkout
    done = is_applied(checkout, key, release.patches)
    if not done:
        fetch(release)
        make_checkout(release, patches, key)
    label = f"{release.version}+lookup.{len(patches)}"
    where = os.path.relpath(checkout)
    if args.no_install or installed(VENV, wanted(checkout, label)):
        print(f"{'already applied' if done else 'applied'}: mlx-lm {label} in {where}")
        return 0
    print(f"applied: mlx-lm {label} in {where}", flush=True)
    return finish(checkout, label)


def is_applied(checkout: Path, key: str, folder: Path = PATCHES) -> bool:
    """Whether the checkout is what this run would make. Refuses to overwrite work that patches/ does not have."""
    if not checkout.exists():
        return False
    if is_as_made(checkout, key):
        return True
    if (stamp := Stamp.read(checkout)) is None:
        raise Refused(f"{checkout} was not made by this script; move it away.")
    if changed := git(checkout, "status", "--porcelain").stdout.strip():
        first = changed.splitlines()[0].split()[-1]
        raise Refused(f"{checkout} has uncommitted changes ({first}); commit them and run {export_command(folder)}.")
    if head(checkout) != stamp.commit:
        with temporary("compare") as exported:
            if changes(checkout, stamp.base, folder, exported):
                raise Refused(
                    f"{checkout} has commits that are not in patches/. {export_command(folder)} writes them there; "
                    "or move the checkout away."
                )
    others = set(git(checkout, "for-each-ref", "--format=%(refname:short)").stdout.split()) - {BRANCH}
    if others:
        raise Refused(f"{checkout} has other branches, tags or stashes ({', '.join(others)}); move it away.")
    return False


def make_checkout(release: Release, patches: list[Path], key: str) -> None:
    with temporary("apply") as scratch:
        fresh = scratch / "fresh"
        base = import_release(release, fresh)
        if release != find_release(None):
            lend_default(fresh, [PATCHES / patch_name(patch) for patch in patches], scratch)
        apply_patches(fresh, patches, release.version)
        place(fresh, release.checkout, Stamp(key, base, head(fresh)))


def wanted(checkout: Path, label: str) -> dict[str, str]:
    return {"label": label, "commit": head(checkout), "extra": mlx_extra()}


def finish(checkout: Path, label: str) -> int:
    """Build the wheel, install it, and run the demo with it."""
    wheel = build_wheel(checkout, label)
    install(VENV, wanted(checkout, label), f"mlx-lm{mlx_extra()} {label}", f"@ {wheel.as_uri()}")
    print(f"installed: mlx-lm {label} in {os.path.relpath(VENV)}")
    print(f"the wheel: {os.path.relpath(wheel)}\n", flush=True)
    demo = [str(VENV / "bin" / "python"), "-m", "conformance.lab.demo"]
    return subprocess.run(demo, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
