"""Write patches/ from the commits of a release's checkout, or check that it would not change.

The default release exports all patches, the series that names them in order, and the table of patches/README.md.
Another release exports into patches/<release>/ only the patches that it needs in another form: those that do not apply
to it, or that make another commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from checkout import Stamp, changes, git, head, series_key
from pin import PATCHES, SERIES, Refused, Release, alone, ended, export_command, find_release, patch_files, temporary
from stages import README, with_table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/export.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", metavar="V", help="a release of vendor/releases.toml (default: the one it names)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if patches/ would change")
    args = parser.parse_args()
    return ended(lambda: export(args))


def export(args: argparse.Namespace) -> int:
    with alone(), temporary("export") as exported:
        return run(find_release(args.release), exported, args.check)


def run(release: Release, exported: Path, check: bool) -> int:
    checkout, series = release.checkout, SERIES.read_text().split()
    stamp = Stamp.read(checkout)
    if stamp is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh makes it.")
    if git(checkout, "status", "--porcelain").stdout:
        raise Refused(f"{checkout} has uncommitted changes; commit them first.")
    count = int(git(checkout, "rev-list", "--count", f"{stamp.base}..HEAD").stdout)
    if head(checkout) == stamp.commit and stamp.key != series_key(release.sha256, patch_files(release.version)):
        of = "" if release.patches == PATCHES else f" --release {release.version}"
        raise Refused(
            f"patches/ has changed since {os.path.relpath(checkout)} was made from it, "
            f"and that has no commits of its own. Run scripts/apply.sh{of} to make it again."
        )
    if count < len(series):
        raise Refused(
            f"the checkout has {count} commits, patches/ {len(series)} patches. Apply the others with "
            "git am --3way, or delete the patch files that are to go, and their lines in patches/series."
        )
    folder = release.patches
    changed = changes(checkout, stamp.base, folder, exported)
    readme = with_table(README.read_text(), exported) if folder == PATCHES else README.read_text()
    changed += ["README.md"] * (readme != README.read_text())
    names = written(exported)
    if folder != PATCHES and not names <= set(series):
        raise Refused(
            f"{', '.join(sorted(names - set(series)))}: a release has no patches of its own, only other forms of them."
        )
    if check and changed:
        raise Refused(
            f"{os.path.relpath(folder, PATCHES.parent)}/ is not what the checkout exports: {', '.join(changed)}. "
            f"Run {export_command(folder)}."
        )
    if not check:
        replace(exported, folder)
        README.write_text(readme)
    print(f"{len(names)} patches, {len(changed)} changed" if changed else f"{len(names)} patches, unchanged")
    return 0


def replace(exported: Path, folder: Path) -> None:
    names = written(exported)
    for name in [*names, *(["series"] if folder == PATCHES else [])]:
        new, old = exported / name, folder / name
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(new, old.with_name(f".{old.name}"))
            os.replace(old.with_name(f".{old.name}"), old)
    for name in written(folder) - names:
        (folder / name).unlink()


def written(folder: Path) -> set[str]:
    """The patches in the folders of the stages."""
    return {path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch")}


if __name__ == "__main__":
    sys.exit(main())
