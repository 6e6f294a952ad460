"""Apply the series to a release of mlx-lm that it was not made for, or to a copy of your own clone."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from apply import is_applied
from checkout import BRANCH, Stamp, am, git, head, identify, import_release, lend_default, place, series_key
from environments import version_of
from pin import VENDOR, Refused, Release, alone, ended, fetch, parser, patch_files, releases, temporary


def main() -> int:
    status = "0 all patches apply, 3 one does not, 1 nothing was tried; docs/releases.md explains it"
    options = parser("port.sh", __doc__, epilog=f"exit status: {status}")
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("new", metavar="NEW", nargs="?", type=_version, help="a version on the package index")
    which.add_argument("--source", metavar="DIR", type=Path, help="your own clone of mlx-lm, as of its HEAD")
    args = options.parse_args()
    return ended(lambda: port(args))


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*\w*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version")
    return text


def port(args: argparse.Namespace) -> int:
    """Make a checkout with one git am, which stops at the first patch that does not apply."""
    with alone(), temporary("port") as scratch:
        fresh, patches = scratch / "fresh", patch_files(args.new or "")
        if args.source:
            checkout, base = import_clone(args.source.resolve(), fresh)
            key = series_key(base, patches)
        else:
            release = get(args.new)
            checkout, key = release.checkout, series_key(release.sha256, patches)
            base = import_release(release, fresh)
        check_unused(checkout, key)
        print(age(args.source, version_of(fresh)), end="")
        lend_default(fresh, patch_files(), scratch)
        print(f"{forecast(fresh, patches, scratch)}\n", flush=True)
        git(fresh, "config", "merge.conflictStyle", "diff3")
        applied, said = am(fresh, patches)
        print(said, end="")
        whole = applied == len(patches)
        place(fresh, checkout, Stamp(key, base, head(fresh) if whole else base))
    print(f"\n{verdict(checkout, whole)}")
    return 0 if whole else 3


def get(version: str) -> Release:
    """Download a release. The hash of one that is not pinned is taken from the file."""
    known = releases()[0]
    if version in known:
        fetch(known[version])
        return known[version]
    release = fetch(Release(version, ""))
    print(
        f"It is not pinned. The lines for vendor/releases.toml, if this is the file that you want:\n\n"
        f'[releases."{version}"]\nsha256 = "{release.sha256}"\n'
    )
    return release


def import_clone(source: Path, into: Path) -> tuple[Path, str]:
    """Copy a clone's HEAD with its history. Returns the path to keep it at, and the commit."""
    if not (source / "mlx_lm" / "generate.py").exists() or git(source, "rev-parse", "HEAD", check=False).returncode:
        raise Refused(f"{source} is not a git clone of mlx-lm.")
    git(into.parent, "clone", "--quiet", "--no-tags", str(source), str(into))
    git(into, "checkout", "--quiet", "-B", BRANCH)
    identify(into)
    return VENDOR / f"mlx-lm-{head(into)[:12]}", head(into)


def age(source: Path | None, version: str) -> str:
    """Say so if a tree is older than the release that the patches were made for."""
    default = releases()[1]
    # git says 1 of a tag that HEAD does not have, and 128 of one that is not there.
    has = ["merge-base", "--is-ancestor", f"v{default}", "HEAD"]
    lacks_it = source is not None and git(source, *has, check=False).returncode == 1
    now, then = ([int(number) for number in re.findall(r"\d+", name)] for name in (version, default))
    if not lacks_it and (version == "0" or now >= then):
        return ""
    what = f"The HEAD of {source}" if source else f"mlx-lm {version}"
    return f"{what} is older than mlx-lm {default}, which the patches were made for: what that brought conflicts too.\n"


def forecast(fresh: Path, patches: list[Path], scratch: Path) -> str:
    """How many patches conflict, and in which files, if each conflict is settled as the patch has it."""
    clone, left, count, files = scratch / "forecast", patches, 0, set[str]()
    git(scratch, "clone", "--quiet", "--shared", fresh, clone)
    identify(clone)
    while left and (left := left[am(clone, left)[0] :]):
        conflicts = git(clone, "diff", "--name-only", "--diff-filter=U").stdout.split()
        for file in conflicts:
            git(clone, "checkout", "--theirs", "--", file, check=False)
        git(clone, "add", "--all")
        # An empty one is in the tree already, or was not there to merge with.
        git(clone, "commit", "--quiet", "--message", left[0].stem, check=False)
        git(clone, "am", "--quit", check=False)
        left, count, files = left[1:], count + 1, files | set(conflicts)
    if not count:
        return f"None of {len(patches)} patches conflicts."
    where = f", in {len(files)} files: {', '.join(sorted(files))}" if files else ""
    return f"{count} of {len(patches)} patches conflict{where}."


def check_unused(checkout: Path, key: str) -> None:
    if (checkout / ".git" / "rebase-apply").exists():
        raise Refused(
            f"{checkout} has a port that is under way: git am --continue goes on with it, in that directory; "
            "delete the directory to start again."
        )
    is_applied(checkout, key)


def verdict(checkout: Path, whole: bool) -> str:
    where = shlex.quote(os.path.relpath(checkout))
    if whole:
        return (
            f"All patches apply: {where} has them.\n"
            f"Next: PORT_CHECKOUT={where} scripts/tox.sh -e port runs the suite on it."
        )
    return (
        f"{where} has the patches up to the one that failed.\n"
        "Next: mend that one there (git diff shows the conflicts), then\n"
        f"  git -C {where} add --all && git -C {where} am --continue\n"
        "which goes on with the patches that are left and stops at the next that does not apply."
    )


if __name__ == "__main__":
    sys.exit(main())
