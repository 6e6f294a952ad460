"""The review of a patch names its faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance import ROOT
from conformance.repository.clones import git
from conformance.series import patches as series
from conformance.series import review
from conformance.series.change import NoChange, changed_tests, of_patch, of_ref
from conformance.series.upstream_tests import KNOWN

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


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a package of two files, with a commit for the release."""
    made = tmp_path.resolve() / "mlx-lm-0.1"
    made.mkdir()
    git(made, "init", "--quiet")
    commit(made, STOCK)
    monkeypatch.setattr(series, "checkout", lambda release="": made)
    return made


def commit(checkout: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "a release or a patch")


def test_a_good_patch(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(checkout, GOOD)
    assert review.review(of_patch(1)) == []
    said = capsys.readouterr().out
    for part in (
        "tests/test_draft.py |",
        "with it:\n    1 passed in",
        "tests/test_draft.py::test_draft - AttributeError: module 'mlx_lm.generate' has no attribute 'Draft'",
        "without it 1 pass, with it 1",
    ):
        assert part in said, said


def test_a_ref_of_a_clone(checkout: Path) -> None:
    commit(checkout, GOOD)
    change = of_ref(f"{checkout}@HEAD")
    assert change == of_patch(1) == of_ref(f"{checkout}@HEAD", "HEAD^")
    for wrong in (f"{checkout}@nothing", f"{checkout}@HEAD^", f"{checkout.parent}@HEAD", "nowhere@HEAD", "abc"):
        with pytest.raises(NoChange, match="has no commit"):
            of_ref(wrong)


def test_the_report_says_why_tests_fail_with_and_without_the_patch(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "test_generate.py::test_step"
    monkeypatch.setitem(KNOWN, name, "it wants what nobody has")
    monkeypatch.setattr(review, "outcome", lambda *_: (1, {name, "test_generate.py::test_new"}))
    commit(checkout, GOOD)
    assert review.review(of_patch(1)) == []
    said = capsys.readouterr().out
    assert "test_generate.py::test_new: nobody has said why" in said
    assert f"{name}: it wants what nobody has" in said


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
def test_a_fault_is_named(checkout: Path, changes: dict[str, str], fault: str) -> None:
    commit(checkout, GOOD | changes)
    assert review.review(of_patch(1)) == [fault]


def test_only_what_a_patch_changes_is_its_own() -> None:
    before = "import a\n\nclass Test:\n    def test_one(self):\n        a(1)\n\n    def test_two(self):\n        a(2)\n"
    assert changed_tests(before, before.replace("import a", "import b")) == []
    assert changed_tests(before, before.replace("a(2)", "a(3)")) == ["Test::test_two"]
    assert changed_tests(before, before + "\ndef test_three():\n    a(3)\n") == ["test_three"]
    assert changed_tests(before, before.replace("class Test:", "class Test:\n    n = 1")) == []
    assert changed_tests("", before) == ["Test::test_one", "Test::test_two"]
