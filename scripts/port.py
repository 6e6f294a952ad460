"""Try the series on a release of mlx-lm that it was not made for, and list the patches that do not fit."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from apply import is_applied
from checkout import BRANCH, IDENTITY, Stamp, am, check_clone, git, head, import_release, lend_default, series_key
from pin import (
    ROOT,
    VENDOR,
    Refused,
    Release,
    alone,
    ended,
    fetch,
    fetch_unpinned,
    find_release,
    patch_files,
    patch_name,
    releases,
    temporary,
)

CONFLICT = re.compile(r"^<{7} .*?^\|{7}.*?^={7}\n(.*?)^>{7} .*?\n", re.MULTILINE | re.DOTALL)


@dataclass
class Row:
    patch: Path
    result: str
    # The files that git merged or could not merge.
    where: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = self.patch.read_text()
        files, hunks = (len(re.findall(mark, text, re.MULTILINE)) for mark in (r"^diff --git ", r"^@@ "))
        line = f"{patch_name(self.patch).removesuffix('.patch')[:60]:60}  {self.result:16} {files:5} {hunks:5}"
        # A line break never falls inside an item.
        items = ", ".join(item.replace(" ", "\0") for item in self.where)
        wrapped = textwrap.wrap(items, 110, break_on_hyphens=False)
        return "\n".join([line, *(f"     {part}".replace("\0", " ") for part in wrapped)])


HEADER = f"{'patch':60}  {'result':16} {'files':>5} {'hunks':>5}"


def main() -> int:
    args = parse_args()
    return ended(lambda: port_and_test(args))


def port_and_test(args: argparse.Namespace) -> int:
    with alone():
        checkout, whole = port(args)
    if args.test and whole:
        return suite(checkout)
    return 0 if whole else 3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/port.sh",
        description=__doc__,
        epilog="exit status: 0 all patches apply, 3 one does not, 1 nothing was tried; docs/releases.md explains it",
    )
    parser.add_argument("new", metavar="NEW", nargs="?", type=_version, help="a version on the package index")
    parser.add_argument("--source", metavar="DIR", type=Path, help="your own clone of mlx-lm, as of its HEAD")
    parser.add_argument("--sha256", metavar="HEX", help="the hash that the sdist must have (default: print the hash)")
    parser.add_argument("--test", action="store_true", help="run the suite if all patches apply")
    args = parser.parse_args()
    if (args.new is None) == (args.source is None):
        parser.error("name a version or --source DIR" + (", not both" if args.new else ""))
    return args


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*\w*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version")
    return text


def port(args: argparse.Namespace) -> tuple[Path, bool]:
    with temporary("port") as scratch:
        fresh, patches = scratch / "fresh", patch_files()
        if args.source:
            checkout, base = import_clone(args.source.resolve(), fresh)
            key = series_key(base, patches)
        else:
            release = get(args.new, args.sha256)
            checkout, key = release.checkout, series_key(release.sha256, patches)
            base = import_release(release, fresh)
        check_unused(checkout, key)
        lend_default(fresh, patches, scratch)
        git(fresh, "config", "merge.conflictStyle", "diff3")
        print(f"\n{HEADER}")
        rows: list[Row] = []
        while len(rows) < len(patches):
            rows += attempt(fresh, patches[len(rows) :])
        Stamp(key, base, head(fresh) if fits(rows) else base).write(fresh)
        if not fits(rows):
            stop_at_the_conflict(fresh, base, patches)
        if checkout.exists():
            os.rename(checkout, scratch / "old")
        os.rename(fresh, checkout)
    print(f"\n{verdict(checkout, rows)}")
    print("\nWhat the suite knows of it:", flush=True)
    surface(checkout, base)
    return checkout, fits(rows)


def get(version: str, sha256: str | None) -> Release:
    """Download a release. Its hash has to be the pinned one, or ``sha256``; without either, any hash is accepted."""
    known = releases()[0]
    if version in known:
        fetch(known[version])
        return known[version]
    if sha256:
        fetch(release := Release(version, sha256))
        return release
    release = fetch_unpinned(version)
    print(
        f"It is not pinned. The lines for vendor/releases.toml, if this is the file that you want:\n\n"
        f'[releases."{version}"]\nsha256 = "{release.sha256}"'
    )
    return release


def import_clone(source: Path, into: Path) -> tuple[Path, str]:
    """Copy a clone's HEAD with its history. Returns the path to keep it at, and the commit."""
    check_clone(source)
    git(into.parent, "clone", "--quiet", "--no-tags", str(source), str(into))
    git(into, "checkout", "--quiet", "-B", BRANCH)
    for name in ("name", "email"):
        git(into, "config", f"user.{name}", IDENTITY[name.upper()])
    return VENDOR / f"mlx-lm-{head(into)[:12]}", head(into)


def check_unused(checkout: Path, key: str) -> None:
    if (checkout / ".git" / "rebase-apply").exists():
        raise Refused(
            f"{checkout} has a port that is under way: git am --continue goes on with it, in that directory; "
            "delete the directory to start again."
        )
    is_applied(checkout, key)


def attempt(checkout: Path, patches: list[Path]) -> list[Row]:
    """Apply the patches up to the first that is not clean. A conflict takes the side of the patch, so that the next
    patches can be tried."""
    n, said = am(checkout, patches)
    rows = [Row(patch, "clean") for patch in patches[:n]]
    if n < len(patches):
        git(checkout, "am", "--quit", check=False)
        rows.append(merge(checkout, patches[n], said))
    print(*rows, sep="\n", flush=True)
    return rows


def merge(checkout: Path, patch: Path, said: str) -> Row:
    """Apply one patch that is not clean, of which git said why."""
    before = head(checkout)
    n, trouble = am(checkout, [patch], "--3way")
    if n:
        if head(checkout) == before:
            return Row(patch, "already upstream")
        moved = re.findall(r"^error: (?:patch failed: )?(.+?)(?::\d+$|: )", said, re.MULTILINE)
        return Row(patch, "merged", list(dict.fromkeys(moved)))
    unmerged = git(checkout, "diff", "--name-only", "--diff-filter=U").stdout.splitlines()
    if not unmerged:
        git(checkout, "am", "--abort")
        return Row(patch, "conflict", [trouble.strip().splitlines()[0].removeprefix("error: ")])
    where = [f"{file} {settle(checkout, file)}" for file in unmerged]
    if git(checkout, "diff", "--cached", "--quiet", check=False).returncode:
        git(checkout, "am", "--continue")
    else:
        git(checkout, "am", "--skip")
    return Row(patch, "conflict", where)


def settle(checkout: Path, file: str) -> str:
    """Take the side of the patch in each conflict of a file. Returns a description of the conflicts."""
    stages = {line.split()[2] for line in git(checkout, "ls-files", "--unmerged", "--", file).stdout.splitlines()}
    if "3" not in stages:
        git(checkout, "rm", "--quiet", "--", file)
        return "(to be deleted)"
    path = checkout / file
    text, count = CONFLICT.subn(r"\1", path.read_text())
    path.write_text(text)
    git(checkout, "add", "--", file)
    return f"({count} hunk{'s' * (count > 1)})" if "2" in stages else "(is not there)"


def fits(rows: list[Row]) -> bool:
    return all(row.result != "conflict" for row in rows)


def stop_at_the_conflict(checkout: Path, base: str, patches: list[Path]) -> None:
    """Start again for the user: apply all patches with one git am, which stops at the first that does not apply."""
    git(checkout, "reset", "--quiet", "--hard", base)
    git(checkout, "am", "--3way", *map(str, patches), check=False)


def verdict(checkout: Path, rows: list[Row]) -> str:
    where = shlex.quote(os.path.relpath(checkout))
    if fits(rows):
        dropped = [patch_name(row.patch) for row in rows if row.result == "already upstream"]
        drop = [f"Not needed any more: {', '.join(dropped)}."] if dropped else []
        return "\n".join(
            [
                f"All patches apply: {where} has them.",
                *drop,
                "Next: pin it in vendor/releases.toml; scripts/port.sh NEW --test runs the suite on it.",
            ]
        )
    first = next(row for row in rows if row.result == "conflict")
    marked = git(checkout, "diff", "--name-only", "--diff-filter=U").stdout.split()
    files = f"with conflict markers in {', '.join(marked)}" if marked else f"not applied: {first.where[0]}"
    return "\n".join(
        [
            f"{where} has the patches before {patch_name(first.patch)}, and that one {files}.",
            "Next: mend them there (git diff shows the conflicts), then",
            f"  git -C {where} add --all && git -C {where} am --continue",
            "which goes on with the patches that are left and stops at the next that does not apply.",
            "The rows below the first conflict are what to expect if each conflict is settled as the patch has it.",
        ]
    )


def suite(checkout: Path) -> int:
    """The conformance suite, in an environment with this release and the series."""
    print(flush=True)
    command = [str(ROOT / "scripts" / "tox.sh"), "-e", "port"]
    return subprocess.run(command, env=os.environ | {"PORT_CHECKOUT": str(checkout)}).returncode


def surface(checkout: Path, base: str) -> None:
    """Print what the release has without the patches, and what it changed since the default release."""
    default = find_release(None)
    fetch(default)
    with temporary("surface") as tree, temporary("default") as scratch:
        import_release(default, scratch / "old")
        # A zip file: extracting one is safe on every Python.
        git(checkout, "archive", "--output", str(tree / "base.zip"), base, "mlx_lm")
        with zipfile.ZipFile(tree / "base.zip") as archive:
            archive.extractall(tree)
        subprocess.run([sys.executable, "-m", "conformance.series.surface", str(tree), str(scratch / "old")], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
