"""Apply the series to a release of mlx-lm that it was not made for, or to a copy of your own clone."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from apply import is_applied
from checkout import BRANCH, Stamp, am, git, head, import_release, lend_default, place, series_key
from environments import version_of
from pin import VENDOR, Refused, Release, alone, ended, fetch, parser, patch_files, patch_name, releases, temporary


def port() -> int:
    """Make a checkout with one git am, which stops at the first patch that does not apply."""
    status = "exit status: 0 all patches apply, 3 one does not, 1 nothing was tried; docs/releases.md explains it"
    options = parser("port.sh", __doc__, epilog=status)
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("new", metavar="NEW", nargs="?", help="a version on the package index")
    which.add_argument("--source", metavar="DIR", type=Path, help="your own clone of mlx-lm, as of its HEAD")
    args = options.parse_args()
    with alone(), temporary("port") as scratch:
        fresh, patches = scratch / "fresh", patch_files(args.new or "")
        if args.source:
            checkout, base = import_clone(args.source.resolve(), fresh)
            key = series_key(base, patches)
        else:
            release = get(args.new)
            checkout, key = release.checkout, series_key(release.sha256, patches)
            base = import_release(release, fresh)
        if (checkout / ".git" / "rebase-apply").exists():
            raise Refused(f"{checkout} has a port that is under way: git am --continue there goes on; or delete it.")
        is_applied(checkout, key)
        print(age(version_of(fresh)), end="")
        lend_default(fresh, patch_files(), scratch)
        print(f"{forecast(fresh, patches, scratch)}\n", flush=True)
        git(fresh, "config", "merge.conflictStyle", "diff3")
        applied, said = am(fresh, patches)
        print(said, end="")
        whole = applied == len(patches)
        place(fresh, checkout, Stamp(key, base, head(fresh) if whole else base))
    print((WHOLE if whole else STOPPED).format(shlex.quote(os.path.relpath(checkout))))
    return 0 if whole else 3


def get(version: str) -> Release:
    """Download a release. The hash of one that is not pinned is taken from the file."""
    pinned = releases()[0].get(version)
    release = fetch(pinned or Release(version, ""))
    if not pinned:
        print("It is not pinned. The lines for vendor/releases.toml, if this is the file that you want:\n")
        print(f'[releases."{version}"]\nsha256 = "{release.sha256}"\n')
    return release


def import_clone(source: Path, into: Path) -> tuple[Path, str]:
    """Copy a clone's HEAD with its history. Returns the path to keep it at, and the commit."""
    if not (source / "mlx_lm" / "generate.py").exists() or git(source, "rev-parse", "HEAD", check=False).returncode:
        raise Refused(f"{source} is not a git clone of mlx-lm.")
    git(into.parent, "clone", "--quiet", "--no-tags", str(source), str(into))
    git(into, "checkout", "--quiet", "-B", BRANCH)
    return VENDOR / f"mlx-lm-{head(into)[:12]}", head(into)


def age(version: str) -> str:
    """Say so if a tree is older than the release that the patches were made for."""
    default = releases()[1]
    now, then = ([int(number) for number in re.findall(r"\d+", name)] for name in (version, default))
    if version == "0" or now >= then:
        return ""
    return f"mlx-lm {version} is older than {default}, which the patches were made for: what that brought conflicts.\n"


def forecast(fresh: Path, patches: list[Path], scratch: Path) -> str:
    """Which patches conflict, and in which files, if each hunk that conflicts is settled as the patch has it."""
    clone, left, found = scratch / "forecast", patches, list[str]()
    git(scratch, "clone", "--quiet", "--shared", fresh, clone)
    while left and (left := left[am(clone, left)[0] :]):
        files = git(clone, "diff", "--name-only", "--diff-filter=U").stdout.split()
        for path in (clone / file for file in files if (clone / file).exists()):
            path.write_text(CONFLICT.sub(r"\1", path.read_text()))
        git(clone, "add", "--all")
        # An empty one is in the tree already, or was not there to merge with.
        git(clone, "commit", "--quiet", "--message", left[0].stem, check=False)
        git(clone, "am", "--quit", check=False)
        found.append(f"\n  {patch_name(left.pop(0))}: {', '.join(files)}")
    return f"{len(found) or 'None'} of {len(patches)} patches conflict{':' if found else '.'}{''.join(found)}"


# What git leaves of a hunk that conflicts. The group is what the patch has.
CONFLICT = re.compile(r"^<{7} .*?^={7}\n(.*?)^>{7} .*?\n", re.MULTILINE | re.DOTALL)
WHOLE = """
All patches apply: {0} has them.
Next: PORT_CHECKOUT={0} scripts/tox.sh -e port runs the suite on it."""
STOPPED = """
{0} has the patches up to the first conflict. Next: mend it there (git diff shows it), then
  git -C {0} add --all && git -C {0} am --continue
which goes on with the patches that are left and stops at the next that does not apply."""


if __name__ == "__main__":
    sys.exit(ended(port))
