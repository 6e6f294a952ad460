"""The series as a reviewer sees it: documented, tested, each patch needed: pytest conformance/test_series.py

What runs each patch alone takes minutes and says nothing of what is installed: tox -e series
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from conformance.review import FAILURES, own_tests, with_and_without
from conformance.series import PATCHES, ROOT, commits, unpack
from conformance.trees import run_tests
from conformance.upstream import AS_ON_STOCK, with_model

pytestmark = pytest.mark.patched_source
# More of them, and one series no longer serves all releases.
MAX_VARIANTS = 4
COLUMNS = ["Patch", "What it does", "Why", "Tests", "Status", "Can be dropped when"]


def rows(readme: str) -> dict[str, dict[str, str]]:
    """The table of patches/README.md by patch."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in readme.splitlines() if line[:1] == "|"]
    assert lines[0] == COLUMNS
    return {cells[0]: dict(zip(COLUMNS, cells, strict=True)) for cells in lines[2:]}


def complaints(patches: dict[str, str], readme: str) -> list[str]:
    """What is missing in the documentation of a series; nothing if it is complete."""
    table = rows(readme)
    found = [f"{name} has no patch" for name in table if name not in patches]
    for name, patch in patches.items():
        row = table.get(name)
        if row is None:
            found.append(f"{name} has no row in patches/README.md")
            continue
        found += [f"{name}: '{column}' is empty" for column in COLUMNS if not row[column]]
        tests = own_tests(patch)
        if not tests:
            found.append(f"{name} carries no test")
        found += [f"{name}: {test} is not in its row" for test in tests if test not in row["Tests"]]
    return found


def series() -> dict[str, str]:
    return {path.stem: path.read_text() for path in PATCHES}


def test_every_patch_has_a_row_a_reason_and_a_test() -> None:
    assert complaints(series(), (ROOT / "patches" / "README.md").read_text()) == []


def subject(patch: str) -> str:
    return patch.split("\nSubject: ", 1)[1].split("\ndiff --git ", 1)[0]


def wrong_variants(variants: dict[str, dict[str, str]], patches: dict[str, str]) -> list[str]:
    """Patches that a release has in another form, if they are too many or none of the series."""
    found = [f"{release} has {len(own)} variants" for release, own in variants.items() if len(own) > MAX_VARIANTS]
    for release, own in variants.items():
        for name, patch in own.items():
            if name not in patches:
                found.append(f"{release}/{name} is a variant of no patch")
            elif subject(patch) != subject(patches[name]):
                found.append(f"{release}/{name} says something else than its patch")
    return found


def test_variants_are_few_and_of_patches() -> None:
    folders = [path for path in (ROOT / "patches").iterdir() if path.is_dir()]
    variants = {folder.name: {path.stem: path.read_text() for path in folder.iterdir()} for folder in folders}
    known = tomllib.loads((ROOT / "vendor" / "releases.toml").read_text())["releases"]
    assert set(variants) <= set(known)
    assert wrong_variants(variants, series()) == []
    name, patch = next(iter(series().items()))
    assert wrong_variants({"1": {"0000-none": patch}}, series()) == ["1/0000-none is a variant of no patch"]
    other = patch.replace("\nSubject: ", "\nSubject: Not ")
    assert wrong_variants({"1": {name: other}}, series()) == [f"1/{name} says something else than its patch"]
    assert wrong_variants({"1": series()}, series()) == [f"1 has {len(PATCHES)} variants"]


def test_the_lint_finds_each_fault() -> None:
    readme = (ROOT / "patches" / "README.md").read_text()
    name = PATCHES[0].stem
    row = next(line for line in readme.splitlines() if line.startswith(f"| {name}"))
    cells = row.split(" | ")
    untested = series() | {name: series()[name].replace("+++ b/tests/", "+++ b/docs/")}
    assert complaints(series(), readme.replace(row + "\n", "")) == [f"{name} has no row in patches/README.md"]
    no_reason = readme.replace(row, " | ".join([*cells[:2], "", *cells[3:]]))
    assert complaints(series(), no_reason) == [f"{name}: 'Why' is empty"]
    assert complaints(untested, readme) == [f"{name} carries no test"]
    assert complaints({}, readme)[0].endswith("has no patch")


@pytest.mark.series
@pytest.mark.parametrize("number", range(1, len(PATCHES) + 1), ids=[path.stem for path in PATCHES])
def test_a_patch_passes_its_tests_which_fail_without_it(number: int, tmp_path: Path) -> None:
    passed, failed = with_and_without(number, tmp_path)
    assert passed.returncode == 0, passed.said[-3000:]
    assert failed.returncode in FAILURES, failed.said[-3000:]


@pytest.mark.series
def test_later_patches_keep_what_earlier_ones_test(tmp_path: Path) -> None:
    files = sorted({file for patch in series().values() for file in own_tests(patch)})
    done = run_tests(with_model(unpack(commits()[-1], tmp_path)), *files, *AS_ON_STOCK)
    assert done.returncode == 0, done.said[-3000:]


SUBTESTS = """
import unittest
class Test(unittest.TestCase):
    def test_it(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.fail(f"failure {n}")
"""


def test_a_run_of_a_tree_says_what_happened(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_wrong.py").write_text(SUBTESTS)
    (tmp_path / "test_missing.py").write_text("import no_such_module\n")
    (tmp_path / "test_other_tree.py").write_text("import mlx_lm\ndef test_it(): pass\n")
    assert run_tests(tmp_path, "test_right.py").returncode == 0
    assert run_tests(tmp_path, "test_missing.py").returncode == 2
    wrong = run_tests(tmp_path, "test_wrong.py")
    assert wrong.returncode == 1
    assert ("failure 1" in wrong.said, "failure 2" in wrong.said) == (True, False)
    assert "failure 2" in run_tests(tmp_path, "test_wrong.py", to_the_end=True).said
    with pytest.raises(AssertionError, match="another mlx-lm"):
        run_tests(tmp_path, "test_other_tree.py")
