"""Apply the series to a release of mlx-lm that it was not made for, or to a copy of your own clone."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from apply import is_applied
from checkout import (
    BRANCH,
    Stamp,
    am,
    check_clone,
    git,
    head,
    identify,
    import_release,
    lend_default,
    place,
    series_key,
)
from environments import version_of
from pin import (
    VENDOR,
    Refused,
    Release,
    alone,
    ended,
    fetch,
    patch_files,
    patch_name,
    releases,
    temporary,
)


def main() -> int:
    args = parse_args()
    return ended(lambda: port(args))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/port.sh",
        description=__doc__,
        epilog="exit status: 0 all patches apply, 3 one does not, 1 nothing was tried; docs/releases.md explains it",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("new", metavar="NEW", nargs="?", type=_version, help="a version on the package index")
    which.add_argument("--source", metavar="DIR", type=Path, help="your own clone of mlx-lm, as of its HEAD")
    return parser.parse_args()


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
    check_clone(source)
    git(into.parent, "clone", "--quiet", "--no-tags", str(source), str(into))
    git(into, "checkout", "--quiet", "-B", BRANCH)
    identify(into)
    return VENDOR / f"mlx-lm-{head(into)[:12]}", head(into)


def age(source: Path | None, version: str) -> str:
    """Say so if a tree is older than the release that the patches were made for."""
    default, tagged = releases()[1], False
    if source is not None and git(source, "rev-parse", "--verify", "--quiet", f"v{default}", check=False).stdout:
        tagged = bool(git(source, "merge-base", "--is-ancestor", f"v{default}", "HEAD", check=False).returncode)
    older = version != "0" and numbers(version) < numbers(default)
    if not tagged and not older:
        return ""
    what = f"The HEAD of {source}" if source else f"mlx-lm {version}"
    return f"{what} is older than mlx-lm {default}, which the patches were made for: what that brought conflicts too.\n"


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def forecast(fresh: Path, patches: list[Path], scratch: Path) -> str:
    """How many patches conflict, and in which files, if each conflict is settled as the patch has it."""
    clone, found = scratch / "forecast", dict[str, set[str]]()
    git(scratch, "clone", "--quiet", "--shared", fresh, clone)
    identify(clone)
    left = patches
    while left:
        left = left[am(clone, left)[0] :]
        if left:
            files = set(git(clone, "diff", "--name-only", "--diff-filter=U").stdout.split())
            found[patch_name(left[0])] = files
            for file in files:
                git(clone, "checkout", "--theirs", "--", file, check=False)
            git(clone, "add", "--all")
            # An empty one is in the tree already, or was not there to merge with.
            git(clone, "commit", "--quiet", "--message", patch_name(left[0]), check=False)
            git(clone, "am", "--quit", check=False)
            left = left[1:]
    if not found:
        return f"None of {len(patches)} patches conflicts."
    named = sorted(set[str]().union(*found.values()))
    where = f", in {len(named)} files: {', '.join(named)}" if named else ""
    return f"{len(found)} of {len(patches)} patches conflict{where}."


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
