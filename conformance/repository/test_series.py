"""The series is documented and tested, and each patch is needed.

The tests that run each patch take minutes and do not depend on the installed mlx-lm: tox -e series
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from stages import Patch, read

from conformance import ROOT
from conformance.repository.clones import git
from conformance.series.change import FAILURES, of_patch, selected, with_and_without
from conformance.series.patches import PATCHES, checkout, name_of
from conformance.series.review import own_tests
from conformance.series.trees import run_tests
from conformance.series.upstream_tests import AS_ON_STOCK, KNOWN, with_model
from conformance.stages.plugin import order

pytestmark = pytest.mark.patched_source
# With more variants, one series would no longer serve all releases.
MAX_VARIANTS = 6
# The most lines of code that a patch may add, the series, and its stages up to core, without tests: nobody reads more.
MAX_PATCH, MAX_LINES, MAX_TO_CORE = 250, 5975, 2041
# The most lines of mlx_lm/draft, and of the tests that the patches add.
MAX_DRAFT, MAX_TESTS = 3400, 5535
# A stage that is no part of drafting is counted apart: its lines, and those of its tests.
APART = {"prefixes": (413, 502)}
# What a cover letter says, each below its heading.
HEADINGS = ["The problem", "The interface", "What it measures", "What it leaves out", "Upstream"]
LEFT_OUT = tuple(test.rpartition("::")[2] for test in KNOWN)


def series() -> dict[str, str]:
    return {name_of(path): path.read_text() for path in PATCHES}


def complaints(patches: dict[str, str]) -> list[str]:
    """The gaps in what the patches of a series say and carry. Empty if there is none."""
    found = []
    authors = {name: re.findall(r"^From: (.*)$", patch, re.MULTILINE)[0] for name, patch in patches.items()}
    first = next(iter(authors.values()))
    for name, patch in patches.items():
        stage, title = name.split("/")
        _, *paragraphs, trailers = subject(patch).removesuffix("\n---\n").strip().split("\n\n")
        if re.match(r"\d", title):
            found.append(f"{name} has a number")
        if f"Stage: {stage}" not in trailers.splitlines():
            found.append(f"{name} is of another stage")
        if "Drop-when: " not in trailers:
            found.append(f"{name} does not say when it can be dropped")
        if not paragraphs:
            found.append(f"{name} does not say why")
        if authors[name] != first:
            found.append(f"{name} has another author")
        if not own_tests(patch):
            found.append(f"{name} carries no test")
        # pytest --deselect takes the beginning of a name.
        defined = re.findall(r"^\+ *def (test_\w+)", patch, re.MULTILINE)
        found += [
            f"{name}: {test} begins like a test that is left out" for test in defined if test.startswith(LEFT_OUT)
        ]
    return found


def test_every_patch_has_a_stage_a_reason_and_a_test() -> None:
    assert complaints(series()) == []


def test_every_stage_has_a_cover_letter() -> None:
    for stage in order():
        letter = (ROOT / "patches" / stage / "README.md").read_text()
        assert re.findall(r"^## (.+)$", letter, re.MULTILINE) == HEADINGS, stage


def subject(patch: str) -> str:
    return patch.split("\nSubject: ", 1)[1].split("\ndiff --git ", 1)[0]


def wrong_variants(variants: dict[str, dict[str, str]], patches: dict[str, str]) -> list[str]:
    """The faults of variants: a release has too many, or one is of no patch, or its text differs."""
    found = [f"{release} has {len(own)} variants" for release, own in variants.items() if len(own) > MAX_VARIANTS]
    for release, own in variants.items():
        for name, patch in own.items():
            if name not in patches:
                found.append(f"{release}/{name} is a variant of no patch")
            elif subject(patch) != subject(patches[name]):
                found.append(f"{release}/{name} says something else than its patch")
    return found


def test_variants_are_few_and_of_patches() -> None:
    folders = [path for path in (ROOT / "patches").iterdir() if path.is_dir() and path.name not in order()]
    variants = {folder.name: {name_of(path): path.read_text() for path in folder.glob("*/*")} for folder in folders}
    known = tomllib.loads((ROOT / "vendor" / "releases.toml").read_text())["releases"]
    assert set(variants) <= set(known)
    assert wrong_variants(variants, series()) == []
    name, patch = next(iter(series().items()))
    assert wrong_variants({"1": {"0000-none": patch}}, series()) == ["1/0000-none is a variant of no patch"]
    other = patch.replace("\nSubject: ", "\nSubject: Not ")
    assert wrong_variants({"1": {name: other}}, series()) == [f"1/{name} says something else than its patch"]
    assert wrong_variants({"1": series()}, series()) == [f"1 has {len(PATCHES)} variants"]


def too_large(patches: dict[str, Patch], draft: int) -> list[str]:
    """The sizes of a series that are over the limits, with so many lines of mlx_lm/draft."""

    def lines(*stages: str) -> tuple[int, int]:
        of_them = [patch for name, patch in patches.items() if name.split("/")[0] in stages]
        return sum(patch.added for patch in of_them), sum(patch.added_tests for patch in of_them)

    added, added_tests = lines(*(stage for stage in order() if stage not in APART))
    sizes = {
        **{name: (patch.added, MAX_PATCH) for name, patch in patches.items()},
        "the series": (added, MAX_LINES),
        "the series up to core": (lines(*order()[: order().index("core") + 1])[0], MAX_TO_CORE),
        "mlx_lm/draft": (draft, MAX_DRAFT),
        "the tests": (added_tests, MAX_TESTS),
        **{stage: (lines(stage)[0], most) for stage, (most, _) in APART.items()},
        **{f"the tests of {stage}": (lines(stage)[1], most) for stage, (_, most) in APART.items()},
    }
    return [f"{name}: {size} lines, {most} at most" for name, (size, most) in sizes.items() if size > most]


def test_the_series_is_small() -> None:
    folder = ROOT / "patches"
    patches = {name: read(folder, name) for name in (folder / "series").read_text().split()}
    draft = sum(len(path.read_text().splitlines()) for path in (checkout() / "mlx_lm/draft").glob("*.py"))
    assert too_large(patches, draft) == []


def fake_patch(file: str, *lines: str) -> str:
    """A patch that adds lines to a file, next to an unchanged line and a removed one."""
    hunk = [" a = 1", "-    b = 2", *(f"+{line}" for line in lines)]
    return "\n".join([f"diff --git a/{file} b/{file}", f"--- a/{file}", f"+++ b/{file}", "@@ -1,2 +1 @@", *hunk, ""])


@pytest.mark.planted
def test_a_series_that_is_too_large_is_found(tmp_path: Path) -> None:
    files = {"mlx_lm/a.py": 20, "tests/test_a.py": 400, "mlx_lm/SERVER.md": 400}
    patch = "".join(fake_patch(file, *["    pass"] * count) for file, count in files.items())
    (tmp_path / "one").write_text(f"From: a\nSubject: [PATCH] T\n\nDrop-when: later\n---\n{patch}")
    assert (read(tmp_path, "one").added, read(tmp_path, "one").added_tests) == (20, 400)

    def complaint(n: int, added: int, tests: int = 0, stage: str = order()[-1], draft: int = 0) -> str:
        patch = Patch("", "", "", [], added, tests)
        (found,) = too_large({f"{stage}/{i}": patch for i in range(n)}, draft)
        return found

    last = order()[-1]
    assert complaint(1, MAX_PATCH + 1) == f"{last}/0: {MAX_PATCH + 1} lines, {MAX_PATCH} at most"
    assert complaint(MAX_LINES + 1, 1) == f"the series: {MAX_LINES + 1} lines, {MAX_LINES} at most"
    assert complaint(MAX_TO_CORE + 1, 1, stage="core") == (
        f"the series up to core: {MAX_TO_CORE + 1} lines, {MAX_TO_CORE} at most"
    )
    assert complaint(1, 1, tests=MAX_TESTS + 1) == f"the tests: {MAX_TESTS + 1} lines, {MAX_TESTS} at most"
    assert complaint(1, 1, draft=MAX_DRAFT + 1) == f"mlx_lm/draft: {MAX_DRAFT + 1} lines, {MAX_DRAFT} at most"
    for stage, (most, most_tests) in APART.items():
        assert complaint(most + 1, 1, stage=stage) == f"{stage}: {most + 1} lines, {most} at most"
        found = complaint(1, 1, most_tests + 1, stage)
        assert found == f"the tests of {stage}: {most_tests + 1} lines, {most_tests} at most"


@pytest.mark.planted
def test_the_lint_finds_each_fault() -> None:
    says = "From: somebody\n\nSubject: [PATCH] Title\n\nA reason.\n\nStage: one\nDrop-when: later\n---\n"
    right = says + fake_patch("mlx_lm/a.py") + fake_patch("tests/test_1.py")
    assert complaints({"one/Title": right}) == []

    def complaint(old: str, new: str, name: str = "one/Title") -> str:
        assert old in right
        (found,) = complaints({"one/First": right, name: right.replace(old, new)})
        return found

    assert complaint("tests/", "more/") == "one/Title carries no test"
    assert complaint("Stage: one", "Stage: two") == "one/Title is of another stage"
    assert complaint("Drop-when", "Drop") == "one/Title does not say when it can be dropped"
    assert complaint("A reason.\n\n", "") == "one/Title does not say why"
    assert complaint("somebody", "another") == "one/Title has another author"
    assert complaint("Title", "1-Title", "one/1-Title") == "one/1-Title has a number"
    never_run = right + fake_patch("tests/test_2.py", f"    def {LEFT_OUT[0]}_again(self):")
    assert complaints({"a/T": never_run.replace(": one", ": a")}) == [
        f"a/T: {LEFT_OUT[0]}_again begins like a test that is left out"
    ]


@pytest.mark.series
@pytest.mark.parametrize("number", range(1, len(PATCHES) + 1), ids=[name_of(path) for path in PATCHES])
def test_a_patch_passes_its_tests_which_fail_without_it(number: int, tmp_path: Path) -> None:
    passed, failed = with_and_without(of_patch(number), tmp_path)
    assert passed.returncode == 0, passed.said[-3000:]
    assert failed.returncode in FAILURES, failed.said[-3000:]


FIXES = [number for number, path in enumerate(PATCHES, 1) if path.parent.name == "fixes"]


def built_on(number: int) -> list[int]:
    """The fixes that a patch builds on, in their order, with those that these build on."""
    titles = re.findall(r"^Builds-on: (.+(?:\n +.+)*)$", PATCHES[number - 1].read_text(), re.MULTILINE)
    names = {re.sub(r"\s+", "-", title) for title in titles}
    direct = [other for other in FIXES[: number - 1] if PATCHES[other - 1].stem in names]
    assert len(direct) == len(names), f"{PATCHES[number - 1].stem} builds on what does not come before it"
    return sorted({one for other in direct for one in (*built_on(other), other)})


@pytest.mark.series
@pytest.mark.parametrize("number", FIXES, ids=[PATCHES[number - 1].stem for number in FIXES])
def test_a_fix_needs_no_other_patch(number: int, tmp_path: Path) -> None:
    """It applies to the plain release with the fixes that it says it builds on, and passes its tests there."""
    change, release = of_patch(number), of_patch(1).before
    base, tree = change.unpack(release, tmp_path / "base"), tmp_path / "tree"
    git(tmp_path, "clone", "--quiet", "--shared", str(change.repository), str(tree))
    git(tree, "checkout", "--quiet", release)
    for one in (*built_on(number), number):
        git(tree, "cherry-pick", "--no-commit", of_patch(one).after)
    with_model(tree)
    passed = run_tests(tree, *(test for file in change.tests() for test in selected(file, base, tree)), *AS_ON_STOCK)
    assert passed.returncode == 0, passed.said[-3000:]


SUBTESTS = """
import unittest
class Test(unittest.TestCase):
    def test_it(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.fail(f"failure {n}")
"""

THREAD = """
import threading
def test_it():
    threading.Thread(target=threading.Event().wait).start()
    assert False
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
    (tmp_path / "test_thread.py").write_text(THREAD)
    assert run_tests(tmp_path, "test_thread.py").returncode == 1
    with pytest.raises(AssertionError, match="another mlx-lm"):
        run_tests(tmp_path, "test_other_tree.py")
