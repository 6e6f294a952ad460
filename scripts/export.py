"""Write patches/ from the commits of a release's checkout, or check that it would not change.

The default release exports all patches, the series that names them in order, and the table of patches/README.md.
Another release exports into patches/<release>/ only the patches that it needs in another form: those that do not apply
to it, or that make another commit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from checkout import DATE, Stamp, git, head, lend_default, series_key
from pin import PATCHES, SERIES, Refused, alone, command_for, ended, find_release, patch_files, stage_of, temporary

README = PATCHES / "README.md"
BEGIN, END = "<!-- made by scripts/export.sh -->\n", "<!-- to here -->\n"


@dataclass(frozen=True)
class Patch:
    """What a commit of a checkout says of itself."""

    # Its line of the series.
    name: str
    title: str
    drop_when: str
    tests: list[str]
    # The lines of Python that it adds outside of tests/, and in it.
    added: int
    added_tests: int


def read(checkout: Path, base: str) -> list[Patch]:
    """The commits since ``base``. Each names its stage, and says when it can be dropped."""
    trailers = [f"%(trailers:key={key},valueonly,unfold,separator=%x20)" for key in ("Stage", "Drop-when")]
    form = "%x1f".join(["%x1e%f.patch", "%s", *trailers, ""])
    log = ["log", "--reverse", "--no-merges", "--no-renames", "--diff-algorithm=histogram", "--numstat"]
    found: list[Patch] = []
    for commit in git(checkout, *log, f"--format={form}", f"{base}..HEAD").stdout.split("\x1e")[1:]:
        file, title, stage, drop_when, numbers = commit.split("\x1f")
        for key, value in (("Stage: NAME", stage), ("Drop-when: ...", drop_when)):
            if not value:
                raise Refused(f"the commit of {file} has no line '{key}' at the end of its message.")
        name, stages = f"{stage}/{file}", [stage_of(patch.name) for patch in found]
        if name in [patch.name for patch in found]:
            raise Refused(f"two commits are called {name}.")
        if stage in stages[:-1] and stage != stages[-1]:
            raise Refused(f"{name} comes after a patch of the stage {stages[-1]}.")
        added = {path: int(n) for n, path in re.findall(r"^(\d+)\t\d+\t(\S+\.py)$", numbers, re.MULTILINE)}
        of_tests = {path: n for path, n in added.items() if path.startswith("tests/")}
        tests = [path.removeprefix("tests/") for path in of_tests if re.match(r"tests/test_\w+\.py", path)]
        lines, lines_of_tests = sum(added.values()), sum(of_tests.values())
        found.append(Patch(name, title, drop_when, tests, lines - lines_of_tests, lines_of_tests))
    return found


def table(patches: list[Patch]) -> str:
    """A section for each stage."""
    lines = []
    for stage in dict.fromkeys(stage_of(patch.name) for patch in patches):
        of_it = [patch for patch in patches if stage_of(patch.name) == stage]
        lines += [f"## [{stage}]({stage}/README.md)", ""]
        lines += [f"{len(of_it)} patches, {sum(patch.added for patch in of_it)} added lines of code.", ""]
        lines += ["| Patch | Lines | Tests | Can be dropped when |", "| --- | --- | --- | --- |"]
        lines += [f"| [{p.title}]({p.name}) | {p.added} | {', '.join(p.tests)} | {p.drop_when} |" for p in of_it] + [""]
    return "\n".join(lines)


def changes(checkout: Path, base: str, folder: Path, exported: Path) -> list[str]:
    """Export the patches of a checkout, and name those that differ from the files in a folder."""
    patches = write(checkout, base, exported)
    if folder == PATCHES:
        before, _, rest = README.read_text().partition(BEGIN)
        (exported / "README.md").write_text(f"{before}{BEGIN}\n{table(patches)}\n{END}{rest.partition(END)[2]}")
    else:
        keep_own_forms(checkout, base, exported, patches)
    names = sorted(written(exported) | written(folder)) + ["series", "README.md"] * (folder == PATCHES)
    return [name for name in names if _content(exported / name) != _content(folder / name)]


def write(checkout: Path, base: str, into: Path) -> list[Patch]:
    """Write the commits since ``base`` as patches, in a folder for each stage, and the series that names them in order.

    A patch file changes only if its content does.
    """
    patches = read(checkout, base)
    stable = ["--zero-commit", "--no-signature", "--no-numbered", "--full-index", "--no-renames", "--no-stat"]
    algorithm = ["--diff-algorithm=histogram", "--unified=3", "--no-ext-diff", "--no-color", "--subject-prefix=PATCH"]
    git(checkout, "format-patch", "--quiet", *stable, *algorithm, "--output-directory", into, f"{base}..HEAD")
    for patch, file in zip(patches, sorted(into.glob("*.patch")), strict=True):
        text = re.sub(r"^Date: .*$", f"Date: {DATE}", file.read_text(), count=1, flags=re.MULTILINE)
        (into / patch.name).parent.mkdir(exist_ok=True)
        (into / patch.name).write_text(text)
        file.unlink()
    (into / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
    return patches


def keep_own_forms(checkout: Path, base: str, exported: Path, patches: list[Patch]) -> None:
    """Delete the exported patches that patches/ makes as well: those that leave the same files."""
    trees = git(checkout, "log", "--reverse", "--no-merges", "--format=%T", f"{base}..HEAD").stdout.split()
    with temporary("forms") as scratch:
        clone = scratch / "clone"
        git(scratch, "clone", "--quiet", "--shared", "--no-checkout", checkout, clone)
        lend_default(clone, patch_files(), scratch)
        git(clone, "read-tree", base)
        for tree, patch in zip(trees, patches, strict=True):
            common = PATCHES / patch.name
            if common.exists():
                git(clone, "apply", "--cached", "--3way", common, check=False)
            if git(clone, "write-tree", check=False).stdout.strip() == tree:
                (exported / patch.name).unlink()
            else:
                git(clone, "read-tree", "--reset", tree)


def written(folder: Path) -> set[str]:
    """The patches in the folders of the stages."""
    return {path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch")}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def export(version: str | None, exported: Path, check: bool) -> int:
    release = find_release(version)
    checkout, folder, series = release.checkout, release.patches, SERIES.read_text().split()
    stamp = Stamp.read(checkout)
    if stamp is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh makes it.")
    if git(checkout, "status", "--porcelain").stdout:
        raise Refused(f"{checkout} has uncommitted changes; commit them first.")
    if head(checkout) == stamp.commit and stamp.key != series_key(release.sha256, patch_files(release.version)):
        raise Refused(
            f"patches/ has changed since {os.path.relpath(checkout)} was made from it, "
            f"and that has no commits of its own. Run {command_for('apply.sh', folder)} to make it again."
        )
    count = int(git(checkout, "rev-list", "--count", f"{stamp.base}..HEAD").stdout)
    if count < len(series):
        raise Refused(
            f"the checkout has {count} commits, patches/ {len(series)} patches. Apply the others with "
            "git am --3way, or delete the patch files that are to go, and their lines in patches/series."
        )
    changed = changes(checkout, stamp.base, folder, exported)
    names = written(exported)
    if folder != PATCHES and (new := names - set(series)):
        raise Refused(f"{', '.join(sorted(new))}: a release has no patches of its own, only other forms of them.")
    if check and changed:
        raise Refused(
            f"{os.path.relpath(folder, PATCHES.parent)}/ is not what the checkout exports: {', '.join(changed)}. "
            f"Run {command_for('export.sh', folder)}."
        )
    for name in () if check else changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (exported / name).exists():
            shutil.move(exported / name, folder / name)
        else:
            (folder / name).unlink()
    print(f"{len(names)} patches, {f'{len(changed)} changed' if changed else 'unchanged'}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/export.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", metavar="V", help="a release of vendor/releases.toml (default: the one it names)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if patches/ would change")
    args = parser.parse_args()

    def command() -> int:
        with alone(), temporary("export") as exported:
            return export(args.release, exported, args.check)

    return ended(command)


if __name__ == "__main__":
    sys.exit(main())
