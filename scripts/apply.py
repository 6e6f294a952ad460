"""Apply the patches to a release of mlx-lm, build it, install it into .venv and show a demo."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from checkout import BRANCH, Stamp, git, head, is_as_made, make_checkout, series_key
from environments import build_wheel, install, installed, mlx_extra
from export import changes
from pin import PATCHES, ROOT, VENV, Refused, alone, command_for, ended, find_release, parser, patch_files

# The model of this repository renames a variable, and copies most of its answer.
PROMPT = r"Change `total` to `count`.\n```\ntotal = 0\nfor n in rows:\n    total += n\nprint(total)\n```"
DEMO = ["--model", "conformance/fixture", "--draft-type", "auto", "--prompt", PROMPT]


def is_applied(checkout: Path, key: str, folder: Path = PATCHES) -> bool:
    """Whether the checkout is what this run would make. Refuses to overwrite work that patches/ does not have."""
    if not checkout.exists() or is_as_made(checkout, key):
        return checkout.exists()
    if (stamp := Stamp.read(checkout)) is None:
        raise Refused(f"{checkout} was not made by this script; move it away.")
    export = command_for("export.sh", folder)
    if changed := git(checkout, "status", "--porcelain").stdout.split():
        raise Refused(f"{checkout} has uncommitted changes ({changed[1]}); commit them and run {export}.")
    if head(checkout) != stamp.commit and changes(checkout, stamp.base, folder):
        raise Refused(
            f"{checkout} has commits that are not in patches/. {export} writes them there; or move the checkout away."
        )
    others = set(git(checkout, "for-each-ref", "--format=%(refname:short)").stdout.split()) - {BRANCH}
    if others:
        raise Refused(f"{checkout} has other branches, tags or stashes ({', '.join(others)}); move it away.")
    return False


def show() -> int:
    """Run the demo, and say what is next."""
    demo = [".venv/bin/mlx_lm.generate", *DEMO]
    print(shlex.join(demo), flush=True)
    if not (code := subprocess.run(demo, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}).returncode):
        model = os.path.relpath(ROOT / "scripts" / "model.sh")
        print(f"\nnext: {model} makes a real model to talk to (93 MB to download)")
    return code


def main() -> int:
    options = parser("apply.sh", __doc__)
    options.add_argument("--release", metavar="V", help="a release of vendor/releases.toml (default: its default)")
    options.add_argument("--stage", metavar="NAME", help="stop after a stage, a folder of patches/ (default: the last)")
    options.add_argument("--no-install", action="store_true", help="only make the patched source")
    args = options.parse_args()
    # An extra that is not known ends it before any work.
    extra = "" if args.no_install else mlx_extra()
    with alone():
        release = find_release(args.release)
        patches, checkout = patch_files(release.version, args.stage), release.checkout
        key, label = series_key(release.sha256, patches), f"{release.version}+lookup.{len(patches)}"
        there = is_applied(checkout, key, release.patches)
        if not there:
            make_checkout(release, patches, key)
        wanted = {"label": label, "commit": head(checkout), "extra": extra, "grammar": True}
        done = args.no_install or installed(VENV, wanted)
        said = "already applied" if there and done else "applied"
        print(f"{said}: mlx-lm {label} in {os.path.relpath(checkout)}", flush=True)
        if done:
            return 0
        wheel = build_wheel(checkout, head(checkout), label)
        # Clients that always ask for a form or a call are answered.
        grammar = f"mlx-lm[grammar] @ {wheel.as_uri()}"
        install(VENV, wanted, f"mlx-lm{extra} {label}", f"@ {wheel.as_uri()}", grammar)
        print(f"installed: mlx-lm {label} in {os.path.relpath(VENV)}")
        print(f"the wheel: {os.path.relpath(wheel)}\n", flush=True)
    # A stage may come before the option of the demo.
    return 0 if args.stage else show()


if __name__ == "__main__":
    sys.exit(ended(main))
