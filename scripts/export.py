"""Write patches/ from the commits of a release's checkout, or check that it would not change.

The default release exports all patches, the series that names them in order, and the table of patches/README.md.
Another release exports into patches/<release>/ only the patches that it needs in another form: those that do not apply
to it, or that make another commit.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from checkout import DATE, Stamp, git, head, lend_default, series_key
from pin import PATCHES, Refused, Release, alone, command_for, ended, find_release, parser, patch_files, temporary

BEGIN, END = "<!-- made by scripts/export.sh -->\n", "<!-- to here -->\n"
STABLE = (
    "--zero-commit --no-signature --no-numbered --full-index --no-renames --no-stat --diff-algorithm=histogram "
    "--unified=3 --no-ext-diff --no-color --subject-prefix=PATCH"
).split()


@dataclass(frozen=True)
class Patch:
    """What a commit of a checkout says of itself."""

    stage: str
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
        name, stages = f"{stage}/{file}", [patch.stage for patch in found]
        if name in [patch.name for patch in found]:
            raise Refused(f"two commits are called {name}.")
        if stage in stages and stage != stages[-1]:
            raise Refused(f"{name} comes after a patch of the stage {stages[-1]}.")
        added = {path: int(n) for n, path in re.findall(r"^(\d+)\t\d+\t(\S+\.py)$", numbers, re.MULTILINE)}
        of_tests = {path: n for path, n in added.items() if path.startswith("tests/")}
        tests = [path.removeprefix("tests/") for path in of_tests if re.match(r"tests/test_\w+\.py", path)]
        lines, lines_of_tests = sum(added.values()), sum(of_tests.values())
        found.append(Patch(stage, name, title, drop_when, tests, lines - lines_of_tests, lines_of_tests))
    return found


def table(patches: list[Patch]) -> str:
    """A section for each stage."""
    lines = []
    for stage in dict.fromkeys(patch.stage for patch in patches):
        of_it = [patch for patch in patches if patch.stage == stage]
        said = f"{len(of_it)} patches, {sum(patch.added for patch in of_it)} added lines of code."
        lines += [f"## [{stage}]({stage}/README.md)", "", said, ""]
        lines += ["| Patch | Lines | Tests | Can be dropped when |", "| --- | --- | --- | --- |"]
        lines += [f"| [{p.title}]({p.name}) | {p.added} | {', '.join(p.tests)} | {p.drop_when} |" for p in of_it] + [""]
    return "\n".join(lines)


def changes(checkout: Path, base: str, folder: Path) -> dict[str, str | None]:
    """What the files of a folder of patches become: those that differ, with None for one that goes."""
    patches = read(checkout, base)
    made = git(checkout, "format-patch", "--stdout", *STABLE, f"{base}..HEAD").stdout
    texts = re.split(r"(?m)^(?=From 0{40} )", made)[1:]
    new = dict[str, str]()
    for patch, text in zip(patches, texts, strict=True):
        new[patch.name] = re.sub(r"(?m)^Date: .*$", f"Date: {DATE}", text.rstrip("\n") + "\n", count=1)
    if folder == PATCHES:
        before, _, rest = (PATCHES / "README.md").read_text().partition(BEGIN)
        new["README.md"] = f"{before}{BEGIN}\n{table(patches)}\n{END}{rest.partition(END)[2]}"
        new["series"] = "".join(f"{patch.name}\n" for patch in patches)
    else:
        same = common(checkout, base, patches)
        new = {name: text for name, text in new.items() if name not in same}
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.patch")}
    old = {name: (folder / name).read_text() for name in there | new.keys() if (folder / name).exists()}
    return {name: new.get(name) for name in sorted({*new, *old}) if new.get(name) != old.get(name)}


def common(checkout: Path, base: str, patches: list[Patch]) -> set[str]:
    """The patches of another release that patches/ makes as well: those that leave the same files."""
    trees = git(checkout, "log", "--reverse", "--no-merges", "--format=%T", f"{base}..HEAD").stdout.split()
    found = set()
    with temporary("forms") as scratch:
        clone = scratch / "clone"
        git(scratch, "clone", "--quiet", "--shared", "--no-checkout", checkout, clone)
        lend_default(clone, patch_files(), scratch)
        git(clone, "read-tree", base)
        for tree, patch in zip(trees, patches, strict=True):
            git(clone, "apply", "--cached", "--3way", PATCHES / patch.name, check=False)
            if git(clone, "write-tree", check=False).stdout.strip() == tree:
                found.add(patch.name)
            else:
                git(clone, "read-tree", "--reset", tree)
    return found


@alone()
def export(release: Release, check: bool) -> int:
    checkout, folder = release.checkout, release.patches
    series = {f"{path.parent.name}/{path.name}" for path in patch_files()}
    if (stamp := Stamp.read(checkout)) is None:
        raise Refused(f"{checkout} is not there; scripts/apply.sh makes it.")
    if git(checkout, "status", "--porcelain").stdout:
        raise Refused(f"{checkout} has uncommitted changes; commit them first.")
    if head(checkout) == stamp.commit and stamp.key != series_key(release.sha256, patch_files(release.version)):
        raise Refused(
            f"patches/ has changed since {os.path.relpath(checkout)} was made from it, "
            f"and that has no commits of its own. Run {command_for('apply.sh', folder)} to make it again."
        )
    names = [patch.name for patch in read(checkout, stamp.base)]
    if len(names) < len(series):
        raise Refused(
            f"the checkout has {len(names)} commits, patches/ {len(series)} patches. Apply the others with "
            "git am --3way, or delete the patch files that are to go, and their lines in patches/series."
        )
    if folder != PATCHES and (new := set(names) - series):
        raise Refused(f"{', '.join(sorted(new))}: a release has no patches of its own, only other forms of them.")
    changed = changes(checkout, stamp.base, folder)
    if check and changed:
        where, again = os.path.relpath(folder, PATCHES.parent), command_for("export.sh", folder)
        raise Refused(f"{where}/ is not what the checkout exports: {', '.join(changed)}. Run {again}.")
    for name, text in changed.items():
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    print(f"{len(list(folder.glob('*/*.patch')))} patches, {f'{len(changed)} changed' if changed else 'unchanged'}")
    return 0


if __name__ == "__main__":
    options = parser("export.sh", __doc__)
    options.add_argument("--release", metavar="V", help="a release of vendor/releases.toml (default: the one it names)")
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 if patches/ would change")
    args = options.parse_args()
    sys.exit(ended(lambda: export(find_release(args.release), args.check)))
