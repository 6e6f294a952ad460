"""Make the git checkout of a release, from its sdist and the patches: the same commit on every machine.

Names, addresses and dates are fixed, and git does not read the user's configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from pin import PATCHES, Refused, Release, fetch, find_release, patch_name, releases, run, temporary

DATE = "Thu, 1 Jan 2026 00:00:00 +0000"
IDENTITY = {"NAME": "mlx-lm prompt lookup", "EMAIL": "series@example.org", "DATE": DATE}
BRANCH, STAMP = "prompt-lookup", ".git/prompt-lookup.json"
IGNORED = "__pycache__/\n*.pyc\n*.egg-info/\nbuild/\ndist/\n.pytest_cache/\n.ruff_cache/\n"


def git(where: Path, *args: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git without the user's configuration."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in IDENTITY.items()}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    return run("git", "-C", where, *args, env=env, check=check)


def head(where: Path) -> str:
    return git(where, "rev-parse", "HEAD").stdout.strip()


@dataclass(frozen=True)
class Stamp:
    """The release and the patches that a checkout was made from."""

    key: str
    base: str
    commit: str

    @classmethod
    def read(cls, checkout: Path) -> Stamp | None:
        path = checkout / STAMP
        return cls(**json.loads(path.read_text())) if path.exists() else None


def is_as_made(checkout: Path, key: str) -> bool:
    """Whether a checkout was made from what the key says, and has no other commits since."""
    stamp = Stamp.read(checkout)
    return stamp is not None and stamp.key == key and head(checkout) == stamp.commit


def place(fresh: Path, checkout: Path, stamp: Stamp) -> None:
    """Move a new checkout into the place of an older one."""
    (fresh / STAMP).write_text(json.dumps(asdict(stamp), indent=2) + "\n")
    if checkout.exists():
        os.rename(checkout, fresh.with_name("old"))
    os.rename(fresh, checkout)
    # For commits that somebody makes there.
    for key in ("name", "email"):
        git(checkout, "config", f"user.{key}", IDENTITY[key.upper()])


def series_key(base: str, patches: list[Path]) -> str:
    """A hash of everything that a checkout is made from."""
    digest = hashlib.sha256(f"{base} {DATE}".encode())
    for patch in patches:
        digest.update(patch_name(patch).encode() + b"\0" + patch.read_bytes())
    return digest.hexdigest()


def import_release(release: Release, into: Path) -> str:
    """Unpack the sdist into a new git checkout, as its first commit; return the commit."""
    # The tarfile of Python 3.11.2 would take over the owners of the files.
    run("tar", "-xzf", release.sdist, "--no-same-owner", "-C", into.parent)
    os.rename(into.parent / f"mlx_lm-{release.version}", into)
    git(into, "init", "--quiet", f"--initial-branch={BRANCH}")
    (into / ".git" / "info" / "exclude").write_text(IGNORED)
    git(into, "add", "--all", "--force")
    git(into, "commit", "--quiet", "--message", f"mlx-lm {release.version}\n\nThe sdist, sha256 {release.sha256}")
    return head(into)


def am(checkout: Path, patches: list[Path]) -> tuple[int, str]:
    """Apply patches up to the first that does not apply. Returns how many it took, and what git says."""
    done = git(checkout, "am", "--3way", "--committer-date-is-author-date", *patches, check=False)
    return done.stdout.count("Applying: ") - (done.returncode != 0), done.stdout + done.stderr


def lend_default(checkout: Path, patches: list[Path], scratch: Path) -> None:
    """Add the original files of the patches to another checkout, so that git can merge where context differs."""
    default = find_release(None)
    lender = default.checkout
    if not is_as_made(lender, series_key(default.sha256, patches)):
        lender = scratch / "default"
        import_release(fetch(default), lender)
        am(lender, patches)
    git(checkout, "fetch", "--quiet", lender, "HEAD")


def make_checkout(release: Release, patches: list[Path], key: str) -> None:
    """Make the checkout of a release with patches, in the place of an older one."""
    fetch(release)
    with temporary("apply") as scratch:
        fresh = scratch / "fresh"
        base = import_release(release, fresh)
        if release != find_release(None):
            lend_default(fresh, [PATCHES / patch_name(patch) for patch in patches], scratch)
        applied, said = am(fresh, patches)
        if applied < len(patches):
            lines = "".join(f"  {line}\n" for line in said.splitlines() if line.startswith(("error: ", "CONFLICT")))
            raise Refused(
                f"{patch_name(patches[applied])} does not apply to mlx-lm {release.version}. "
                f"It was made for mlx-lm {releases()[1]}.\n{lines}"
                f"Next: scripts/port.sh {release.version} leaves it for you to mend (docs/releases.md)."
            )
        place(fresh, release.checkout, Stamp(key, base, head(fresh)))
