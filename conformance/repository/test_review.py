"""The review of a patch names its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.repository.clones import git
from conformance.series import patches as series
from conformance.series import review
from conformance.series.change import of_patch

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository

STOCK = {
    "mlx_lm/__init__.py": "",
    "mlx_lm/generate.py": "def step(prompt, n=1):\n    return n\n",
    "tests/test_generate.py": "from mlx_lm.generate import step\n\ndef test_step():\n    assert step([]) == 1\n",
}
NEW = "def step(prompt, n=1, k=0):\n    return n + k\n\nclass Draft:\n    def __init__(self, k):\n        pass\n"
TEST = "from mlx_lm import generate\n\ndef test_draft():\n    assert "
GOOD = {"mlx_lm/generate.py": NEW, "tests/test_draft.py": f"{TEST}generate.Draft(1)\n"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a package of two files, with a commit for the release."""
    made = tmp_path.resolve() / "mlx-lm-0.1"
    made.mkdir()
    git(made, "init", "--quiet")
    commit(made, STOCK)
    monkeypatch.setattr(series, "checkout", lambda: made)
    return made


def commit(checkout: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "a release or a patch")


@pytest.mark.parametrize(
    ("changes", "faults", "said"),
    [
        ({}, [], "test_draft - AttributeError: module 'mlx_lm.generate' has no attribute 'Draft'"),
        ({"tests/test_draft.py": f"{TEST}generate.step([]) == 1\n"}, ["its tests pass without it"], "1 passed in"),
        ({"tests/test_draft.py": f"{TEST}generate.Draft(1) is None\n"}, ["its tests fail with it"], "AssertionError"),
        (
            {"mlx_lm/generate.py": NEW.replace("n + k", "k")},
            ["test_generate.py::test_step fails with it"],
            "without it 1 pass, with it 0",
        ),
    ],
    ids=["good", "a test that passes without", "a test that fails with", "a test of upstream's that fails"],
)
def test_a_fault_is_named(
    checkout: Path, changes: dict[str, str], faults: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(checkout, GOOD | changes)
    assert review.review(of_patch(1)) == faults
    printed = capsys.readouterr().out
    assert "tests/test_draft.py |" in printed
    assert said in printed
