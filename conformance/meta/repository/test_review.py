"""The review of a patch names its faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.series import patches as series
from conformance.series import review
from conformance.series.change import NoChange, of_patch, of_ref
from conformance.series.changed import changed_tests
from conformance.series.upstream_tests import KNOWN
from conformance.testing.clones import git

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository

STOCK = {
    "mlx_lm/__init__.py": "",
    "mlx_lm/generate.py": "def step(prompt, n=1):\n    return n\n\ndef _hidden():\n    pass\n\nclass Old:\n    pass\n",
    "tests/test_generate.py": "from mlx_lm.generate import step\n\ndef test_step():\n    assert step([]) == 1\n",
}
NEW_GENERATE = (
    "def step(prompt, n=1, k=0):\n    return n + k\n\n\nclass Draft:\n    def __init__(self, k):\n        pass\n"
)
TEST = "from mlx_lm import generate\n\ndef test_draft():\n    assert "
GOOD = {"mlx_lm/generate.py": NEW_GENERATE, "tests/test_draft.py": f"{TEST}generate.Draft(1)\n"}


def test_what_it_imports_leaves_the_tree_its_own_mlx_lm() -> None:
    """A process that tests a tree imports this module first, and must not load another mlx-lm."""
    code = "import sys, conformance.series.review; sys.exit('mlx_lm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


class Patch:
    """A series of one patch, on a package of two files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> None:
        checkout = folder / "mlx-lm-0.1"
        checkout.mkdir()
        git(checkout, "init", "--quiet")
        for message, files in (("release", STOCK), ("patch", changes)):
            for name, text in files.items():
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                (checkout / name).write_text(text)
            git(checkout, "add", "--all")
            git(checkout, "commit", "--quiet", "--message", message)
        self.checkout = checkout
        monkeypatch.setattr(series, "checkout", lambda release="": checkout)
        # One other test covers the build.
        monkeypatch.setattr(review, "build", lambda *_: None)

    def report(self) -> review.Report:
        return review.review(of_patch(1))


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def test_a_good_patch(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Patch(tmp, monkeypatch, GOOD).report()
    said = "\n".join(report.lines)
    assert report.faults == []
    for part in (
        "of that +4 -0 in tests",
        "added    mlx_lm/generate.py:Draft(self, k)",
        "removed  mlx_lm/generate.py:Old",
        "changed  mlx_lm/generate.py:step(prompt, n=1, k=0), was (prompt, n=1)",
        "with it: 1 passed",
        "without it 1 pass, 0 fail; with it 1, 0",
    ):
        assert part in said, said
    assert "_hidden" not in said


def test_a_ref_of_a_clone(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report separates wrong results from missing names: a wrong result proves more."""
    tests = "from mlx_lm.generate import step\n\ndef test_k():\n    assert step([], k=1) == 2\n\ndef test_n():\n    "
    code = GOOD["mlx_lm/generate.py"].replace("n + k", "n + k if n else -1")
    made = Patch(
        tmp, monkeypatch, {"mlx_lm/generate.py": code, "tests/test_n.py": f"{tests}assert step([], 0) == -1\n"}
    )
    report = review.review(of_ref(f"{made.checkout}@HEAD"))
    said = "\n".join(report.lines)
    assert report.faults == []
    assert "1 fail without it, a wrong result:" in said
    assert "test_n.py::test_n  " in said
    assert "1 fail without it, for want of a name:" in said
    assert "test_n.py::test_k  TypeError" in said
    assert of_ref(f"{made.checkout}@HEAD", "HEAD^").before == of_ref(f"{made.checkout}@HEAD").before
    for wrong in (f"{made.checkout}@nothing", f"{made.checkout}@HEAD^", f"{tmp}@HEAD", "nowhere@HEAD", "abc"):
        with pytest.raises(NoChange, match="has no commit"):
            of_ref(wrong)


def test_the_report_says_why_tests_fail_with_and_without_the_patch(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "test_generate.py::test_step"
    monkeypatch.setitem(KNOWN, name, "it wants what nobody has")
    monkeypatch.setattr(review, "outcome", lambda *_: (1, {name, "test_generate.py::test_new"}))
    lines = [line.strip() for line in Patch(tmp, monkeypatch, GOOD).report().lines]
    after = lines.index("without it 1 pass, 2 fail; with it 1, 2") + 1
    assert lines[after:] == [
        "these fail with and without it:",
        "test_generate.py::test_new: nobody has said why",
        f"{name}: it wants what nobody has",
    ]


def test_a_long_name_does_not_cut_off_what_is_wrong(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = f"from mlx_lm import generate\n\ndef test_{'x' * 31}():\n    assert generate.Draft(1)\n"
    report = Patch(tmp, monkeypatch, GOOD | {"tests/test_draft.py": test}).report()
    assert "1 fail without it, for want of a name:" in "\n".join(report.lines)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tests/test_draft.py": f"{TEST}generate.step([]) == 1\n"}, "its tests pass without it"),
        ({"tests/test_draft.py": f"{TEST}generate.Draft(1) is None\n"}, "its tests fail with it"),
        (
            {"mlx_lm/generate.py": NEW_GENERATE.replace("n + k", "k")},
            "test_generate.py::test_step fails with it",
        ),
    ],
    ids=["a test that passes without", "a test that fails with", "a test of upstream's that fails"],
)
def test_a_fault_is_named(tmp: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], fault: str) -> None:
    report = Patch(tmp, monkeypatch, GOOD | changes).report()
    assert report.faults == [fault]


def test_a_tree_that_does_not_build(tmp: Path) -> None:
    (tmp / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'missing'\nbackend-path = ['.']\n"
    )
    report = review.Report()
    review.build(report, tmp, "0.1")
    assert report.faults == ["the tree as of this patch does not build"]


def test_only_what_a_patch_changes_is_its_own() -> None:
    before = "import a\n\nclass Test:\n    def test_one(self):\n        a(1)\n\n    def test_two(self):\n        a(2)\n"
    assert changed_tests(before, before.replace("import a", "import b")) == []
    assert changed_tests(before, before.replace("a(2)", "a(3)")) == ["Test::test_two"]
    assert changed_tests(before, before + "\ndef test_three():\n    a(3)\n") == ["test_three"]
    assert changed_tests(before, before.replace("class Test:", "class Test:\n    n = 1")) == []
    assert changed_tests("", before) == ["Test::test_one", "Test::test_two"]
