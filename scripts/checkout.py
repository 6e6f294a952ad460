"""Make the git checkout of a release: import the sdist, apply the patches, write the patches back.

The same release and the same patches give the same commit on every machine: names, addresses and dates are fixed, and
git does not read the user's configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from pin import (
    PATCHES,
    Refused,
    Release,
    check_disk,
    fetch,
    find_release,
    patch_files,
    patch_name,
    releases,
    stage_of,
    temporary,
)

DATE = "Thu, 1 Jan 2026 00:00:00 +0000"
IDENTITY = {"NAME": "mlx-lm prompt lookup", "EMAIL": "series@example.org", "DATE": DATE}
BRANCH = "prompt-lookup"
IGNORED = "__pycache__/\n*.pyc\n*.egg-info/\nbuild/\ndist/\n.pytest_cache/\n.ruff_cache/\n"


def git(where: Path, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git without the user's configuration.

    Raises:
        Refused: with the message of git, if it fails and ``check`` is set.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in IDENTITY.items()}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(["git", "-C", where, *args], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        check_disk(done.stderr)
    if check and done.returncode != 0:
        raise Refused(f"git {' '.join(args)} failed in {where}: {done.stderr.strip()}")
    return done


def head(where: Path) -> str:
    return git(where, "rev-parse", "HEAD").stdout.strip()


def check_clone(source: Path) -> None:
    if not (source / "mlx_lm" / "generate.py").exists() or git(source, "rev-parse", "HEAD", check=False).returncode:
        raise Refused(f"{source} is not a git clone of mlx-lm.")


@dataclass(frozen=True)
class Stamp:
    """The release and the patches that a checkout was made from. It lies inside the .git directory."""

    key: str
    base: str
    commit: str

    @staticmethod
    def path(checkout: Path) -> Path:
        return checkout / ".git" / "prompt-lookup.json"

    @classmethod
    def read(cls, checkout: Path) -> Stamp | None:
        path = cls.path(checkout)
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self, checkout: Path) -> None:
        self.path(checkout).write_text(json.dumps(asdict(self), indent=2) + "\n")


def is_as_made(checkout: Path, key: str) -> bool:
    """Whether a checkout was made from what the key says, and has no other commits since."""
    stamp = Stamp.read(checkout)
    return stamp is not None and stamp.key == key and head(checkout) == stamp.commit


def place(fresh: Path, checkout: Path, stamp: Stamp) -> None:
    """Move a new checkout into the place of an older one."""
    stamp.write(fresh)
    if checkout.exists():
        os.rename(checkout, fresh.with_name("old"))
    os.rename(fresh, checkout)


def identify(checkout: Path) -> None:
    """Give a checkout the identity of the series, for commits that somebody makes there."""
    for key in ("name", "email"):
        git(checkout, "config", f"user.{key}", IDENTITY[key.upper()])


def series_key(base: str, patches: list[Path]) -> str:
    """A hash of everything that a checkout is made from."""
    digest = hashlib.sha256(f"{base} {DATE}".encode())
    for patch in patches:
        digest.update(patch_name(patch).encode() + b"\0" + patch.read_bytes())
    return digest.hexdigest()


def extract(sdist: Path, into: Path) -> None:
    """Write the files of an sdist into a folder. The tarfile of Python 3.11.2 would take over their owners."""
    done = subprocess.run(["tar", "-xzf", sdist, "--no-same-owner", "-C", into], capture_output=True, text=True)
    if done.returncode:
        check_disk(done.stderr)
        raise Refused(f"{sdist} could not be unpacked: {done.stderr.strip()}")


def import_release(release: Release, into: Path) -> str:
    """Unpack the sdist into a new git checkout, as its first commit; return the commit."""
    extract(release.sdist, into.parent)
    os.rename(into.parent / f"mlx_lm-{release.version}", into)
    git(into, "init", "--quiet", f"--initial-branch={BRANCH}")
    (into / ".git" / "info" / "exclude").write_text(IGNORED)
    identify(into)
    git(into, "add", "--all", "--force")
    git(into, "commit", "--quiet", "--message", f"mlx-lm {release.version}\n\nThe sdist, sha256 {release.sha256}")
    return head(into)


def am(checkout: Path, patches: list[Path], *options: str) -> tuple[int, str]:
    """Apply patches with one git am. Returns how many it took, and what git says of the next one, which it stops at."""
    if not patches:
        return 0, ""
    command = ["am", "--quiet", "--committer-date-is-author-date", *options, *map(str, patches)]
    done = git(checkout, *command, check=False)
    if done.returncode == 0:
        return len(patches), ""
    stopped = checkout / ".git" / "rebase-apply" / "next"
    return int(stopped.read_text()) - 1 if stopped.exists() else 0, done.stderr


def lend_default(checkout: Path, patches: list[Path], scratch: Path) -> None:
    """Add the original files of the patches to another checkout, so that git can merge where context differs."""
    default = find_release(None)
    lender = default.checkout
    if not is_as_made(lender, series_key(default.sha256, patches)):
        fetch(default)
        lender = scratch / "default"
        import_release(default, lender)
        am(lender, patches)
    git(checkout, "fetch", "--quiet", str(lender), "HEAD")


def apply_patches(checkout: Path, patches: list[Path], version: str) -> None:
    """Apply patches in order to a release."""
    applied, said = am(checkout, patches, "--3way")
    for number, patch in enumerate(patches[: applied + 1], 1):
        print(f"applying {patch_name(patch)} ({number}/{len(patches)})", flush=True)
    if applied < len(patches):
        git(checkout, "am", "--quit", check=False)
        git(checkout, "reset", "--quiet", "--hard")
        tried = git(checkout, "apply", "--check", str(patches[applied]), check=False).stderr
        lines = [f"  {line.removeprefix('error: ')}\n" for line in (tried or said).splitlines()]
        name, default = patch_name(patches[applied]), releases()[1]
        raise Refused(
            f"{name} does not apply to mlx-lm {version}. It was made for mlx-lm {default}.\n"
            f"{''.join(lines)}Next: scripts/port.sh {version} leaves it for you to mend (docs/releases.md)."
        )


def export(checkout: Path, base: str, into: Path) -> None:
    """Write the commits since ``base`` as patches, in a folder for each stage, and the series that names them in order.

    A patch file changes only if its content does.
    """
    stable = ["--zero-commit", "--no-signature", "--no-numbered", "--full-index", "--no-renames", "--no-stat"]
    algorithm = ["--diff-algorithm=histogram", "--unified=3", "--no-ext-diff", "--no-color", "--subject-prefix=PATCH"]
    # The name of a file is the whole subject, which git would cut off.
    names = ["--filename-max-length=120", "--output-directory", str(into)]
    git(checkout, "format-patch", "--quiet", *stable, *algorithm, *names, f"{base}..HEAD")
    names_of_series: list[str] = []
    for patch in sorted(into.glob("*.patch")):
        text = re.sub(r"^Date: .*$", f"Date: {DATE}", patch.read_text(), count=1, flags=re.MULTILINE)
        name = _in_stage(patch.name.partition("-")[2], text, names_of_series)
        names_of_series.append(name)
        (into / name).parent.mkdir(exist_ok=True)
        (into / name).write_text(text)
        patch.unlink()
    (into / "series").write_text("".join(f"{name}\n" for name in names_of_series))


def _in_stage(name: str, patch: str, before: list[str]) -> str:
    """The line of the series for a patch, whose commit names its stage."""
    if (found := re.search(r"^Stage: (\w+)$", patch, re.MULTILINE)) is None:
        raise Refused(f"the commit of {name} has no line 'Stage: NAME' at the end of its message.")
    name = f"{found[1]}/{name}"
    if name in before:
        raise Refused(f"two commits are called {name}.")
    stages = [stage_of(one) for one in before]
    if found[1] in stages and found[1] != stages[-1]:
        raise Refused(f"{name} comes after a patch of the stage {stages[-1]}.")
    return name


def changes(checkout: Path, base: str, folder: Path, exported: Path) -> list[str]:
    """Export the patches of a checkout, and name those that differ from the files in a folder."""
    export(checkout, base, exported)
    if folder != PATCHES:
        _keep_variants(checkout, base, exported)
    # The folders of the other releases lie deeper.
    found = {path.relative_to(where) for where in (exported, folder) for path in where.glob("*/*.patch")}
    names = [path.as_posix() for path in sorted(found)] + ["series"] * (folder == PATCHES)
    return [name for name in names if _content(exported / name) != _content(folder / name)]


def _keep_variants(checkout: Path, base: str, exported: Path) -> None:
    """Delete the exported patches that patches/ makes as well. A release keeps only its own forms of patches."""
    commits = [base, *git(checkout, "rev-list", "--reverse", f"{base}..HEAD").stdout.split()]
    names, done = (exported / "series").read_text().split(), 0
    with temporary("variants") as scratch:
        git(scratch, "clone", "--quiet", "--shared", str(checkout), "clone")
        clone = scratch / "clone"
        lend_default(clone, patch_files(), scratch)
        while done < len(names):
            git(clone, "checkout", "--quiet", "--force", "--detach", commits[done])
            rest = takewhile(Path.exists, (PATCHES / name for name in names[done:]))
            am(clone, list(rest), "--3way")
            git(clone, "am", "--quit", check=False)
            made = _trees(clone, commits[done], "HEAD")
            wanted = _trees(checkout, commits[done], "HEAD")
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(made, wanted, strict=False))))
            for name in names[done : done + same]:
                (exported / name).unlink()
            # The next one is a form of its own.
            done += same + 1


def _trees(checkout: Path, after: str, until: str) -> list[str]:
    """The content that each commit leaves."""
    return git(checkout, "log", "--reverse", "--format=%T", f"{after}..{until}").stdout.split()


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
