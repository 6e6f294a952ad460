"""Write patches/ from the commits of the default release's checkout, or check that it would not change."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from checkout import Stamp, differences, export, git
from pin import PATCHES, Refused, alone, find_release, patch_files, temporary


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/export.sh", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if patches/ would change")
    args = parser.parse_args()
    try:
        with alone(), temporary("export") as exported:
            return run(exported, args.check)
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1


def run(exported: Path, check: bool) -> int:
    checkout = find_release(None).checkout
    stamp = Stamp.read(checkout)
    if stamp is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh makes it.")
    if git(checkout, "status", "--porcelain").stdout:
        raise Refused(f"{checkout} has uncommitted changes; commit them first.")
    export(checkout, stamp.base, exported)
    count = len(list(exported.glob("*.patch")))
    if count < len(patch_files()):
        raise Refused(
            f"the checkout has {count} commits, patches/ {len(patch_files())} patches. Apply the others with "
            "git am --3way, or delete the patch files that are to go."
        )
    changed = differences(exported)
    if check and changed:
        raise Refused(f"patches/ is not what the checkout exports: {', '.join(changed)}. Run scripts/export.sh.")
    if not check:
        replace(exported)
    print(f"{count} patches, {len(changed)} changed" if changed else f"{count} patches, unchanged")
    return 0


def replace(exported: Path) -> None:
    names = {patch.name for patch in exported.glob("*.patch")}
    for patch in exported.glob("*.patch"):
        if not (PATCHES / patch.name).exists() or (PATCHES / patch.name).read_bytes() != patch.read_bytes():
            shutil.copy(patch, PATCHES / f".{patch.name}")
            os.replace(PATCHES / f".{patch.name}", PATCHES / patch.name)
    for patch in patch_files():
        if patch.name not in names:
            patch.unlink()


if __name__ == "__main__":
    sys.exit(main())
