"""The series is documented and tested, small enough to be read, each patch is needed, and mends what it says.

The tests that run each patch take minutes and do not depend on the installed mlx-lm: tox -e series
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from checkout import Stamp
from export import read

from conformance import FIXTURE, ROOT
from conformance.oracle.profiles import FULL
from conformance.repository.clones import git
from conformance.series.patches import PATCHES, RELEASES, checkout, commits, name_of, own_tests, unpack
from conformance.series.trees import FAIL_ON_STOCK, in_tree, run_tests, with_model
from conformance.stages import order

pytestmark = pytest.mark.patched_source
# The most lines of code that a patch may add, without its tests: nobody reads more.
MAX_PATCH = 250
LEFT_OUT = tuple(test.rpartition("::")[2] for test in FAIL_ON_STOCK)
NAMES = [name_of(path) for path in PATCHES]


def parts(patch: Path) -> tuple[str, str, str]:
    """The author of a patch, its message and its diff."""
    head, diff = patch.read_text().split("\ndiff --git ", 1)
    before, message = head.split("\nSubject: ", 1)
    return before.split("\nFrom: ", 1)[1], message, diff


@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_a_patch_says_why_and_carries_a_test(patch: Path) -> None:
    author, message, diff = parts(patch)
    _, *paragraphs, trailers = message.removesuffix("\n---\n").strip().split("\n\n")
    assert paragraphs, "it does not say why"
    assert f"Stage: {patch.parent.name}" in trailers.splitlines(), "it says that it is of another stage"
    assert author == parts(PATCHES[0])[0], "it has another author than the first patch"
    assert not patch.name[0].isdigit(), "its title is a number"
    assert own_tests(diff), "it carries no test"
    # pytest --deselect takes the beginning of a name.
    never = [test for test in re.findall(r"^\+ *def (test_\w+)", diff, re.MULTILINE) if test.startswith(LEFT_OUT)]
    assert not never, f"these begin like a test that is left out, and never run: {', '.join(never)}"


def sizes() -> dict[str, tuple[int, int]]:
    """The lines of each part, and the most that it may have. A stage that is no part of drafting is counted apart."""
    base = Stamp.read(checkout())
    assert base is not None, "scripts/apply.sh makes the checkout"
    patches = read(checkout(), base.base)
    lines = {stage: [0, 0] for stage in order()}
    for patch in patches:
        for i, added in enumerate((patch.added, patch.added_tests)):
            lines[patch.name.split("/")[0]][i] += added
    code, tests = ({stage: both[i] for stage, both in lines.items()} for i in (0, 1))
    to_core = order()[: order().index("core") + 1]
    apart = {"prefixes", "grammar"}
    lab = lines_of(ROOT / "conformance" / "lab")
    return {
        "the series": (sum(code[stage] for stage in order() if stage not in apart), 7979),
        "the series up to core": (sum(code[stage] for stage in to_core), 2428),
        "mlx_lm/draft": (lines_of(checkout() / "mlx_lm" / "draft"), 4787),
        "the tests of the series": (sum(tests[stage] for stage in order() if stage not in apart), 5980),
        "prefixes": (code["prefixes"], 513),
        "the tests of prefixes": (tests["prefixes"], 505),
        "grammar": (code["grammar"], 694),
        "the tests of grammar": (tests["grammar"], 862),
        "conformance/ without lab/": (lines_of(ROOT / "conformance") - lab, 12_112),
        "conformance/lab/": (lab, 3_681),
        "scripts/": (lines_of(ROOT / "scripts"), 1_213),
    } | {patch.name: (patch.added, MAX_PATCH) for patch in patches}


def lines_of(folder: Path) -> int:
    """The lines of Python and of shell scripts."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*") if path.suffix in (".py", ".sh"))


def test_what_somebody_reads_is_small() -> None:
    large = [f"{name} has {size} lines, {most} at most" for name, (size, most) in sizes().items() if size > most]
    assert not large, "; ".join(large)


FIXES = [number for number, path in enumerate(PATCHES, 1) if path.parent.name == "fixes"]
# pytest's exit status when a test fails, when a file does not import, and when a test of such a file is named.
FAILURES = (1, 2, 4)


def built_on(number: int) -> list[int]:
    """The fixes that a patch builds on, in their order, with those that these build on."""
    titles = re.findall(r"^Builds-on: (.+(?:\n +.+)*)$", PATCHES[number - 1].read_text(), re.MULTILINE)
    names = {re.sub(r"\s+", "-", title) for title in titles}
    direct = [other for other in FIXES[: number - 1] if PATCHES[other - 1].stem in names]
    assert len(direct) == len(names), f"{PATCHES[number - 1].stem} builds on what does not come before it"
    return sorted({one for other in direct for one in (*built_on(other), other)})


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the checkout, which goes from patch to patch."""
    made = tmp_path_factory.mktemp("series") / "tree"
    git(ROOT, "clone", "--quiet", "--shared", str(checkout()), str(made))
    return with_model(made)


def named_tests(files: list[Path]) -> set[tuple[str, str]]:
    """The tests of files that are there, by name and code."""
    nodes = (node for file in files if file.exists() for node in ast.walk(ast.parse(file.read_text())))
    return {(n.name, ast.dump(n)) for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test")}


@pytest.mark.series
@pytest.mark.parametrize("number", range(1, len(PATCHES) + 1), ids=NAMES)
def test_a_patch_passes_its_tests_which_fail_without_it(number: int, tree: Path) -> None:
    """A fix on the plain release, with the fixes that it says it builds on. Any other patch on those before it."""
    made, files = commits(), own_tests(PATCHES[number - 1].read_text())
    git(tree, "checkout", "--quiet", "--force", made[0 if number in FIXES else number - 1])
    if number in FIXES and (others := built_on(number)):
        git(tree, "cherry-pick", *(made[other] for other in others))
    before = named_tests([tree / file for file in files])
    git(tree, "cherry-pick", made[number])
    # Whole files if it changes no test in them.
    names = sorted({name for name, _ in named_tests([tree / file for file in files]) - before})
    chosen = ["-x", *files, *(["-k", " or ".join(names)] if names else [])]
    passed = run_tests(tree, *chosen)
    print(f"--- with it:\n{passed.stdout}")
    assert passed.returncode == 0, passed.stdout[-3000:]
    # Helpers that the tests share stay. Only the package itself is to be missing.
    git(tree, "checkout", "--quiet", "--no-overlay", "HEAD^", "--", "mlx_lm")
    failed = run_tests(tree, *chosen)
    print(f"--- without it:\n{failed.stdout}")
    assert failed.returncode in FAILURES, failed.stdout[-3000:]


# Of upstream, also those that no patch changes. The others of upstream load models of the hub, or train.
UPSTREAM = ("generate", "gated_delta", "models", "prompt_cache", "sample_utils", "server")
OWN = {file for patch in PATCHES for file in own_tests(patch.read_text())}
FILES = sorted(OWN | {f"tests/test_{name}.py" for name in UPSTREAM})
# Several files share a process, which takes longer to start than most of them.
PROCESSES = 6


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The release, and the whole series."""
    places = {"release": 0, "series": -1}
    return [with_model(unpack(commits()[i], tmp_path_factory.mktemp("tree") / name)) for name, i in places.items()]


@pytest.mark.series
@pytest.mark.parametrize("part", range(PROCESSES))
def test_the_tests_of_the_patched_tree_pass(part: int, trees: list[Path]) -> None:
    """Those of upstream, but those that fail on the release too, and those of earlier patches with the later ones."""
    done = run_tests(trees[1], "-rfE", *FILES[part::PROCESSES])
    assert done.returncode == 0, done.stdout[-5000:]


# Each program of conformance/upstream/faults.toml shows its fault on the release. If docs/upstream.md names a patch for
# it, it must print something else with the series, else the same.
DATA = tomllib.loads((ROOT / "conformance" / "upstream" / "faults.toml").read_text("utf-8"))
FAULTS: dict[str, dict[str, str]] = DATA["fault"]
PAGE = (ROOT / "docs" / "upstream.md").read_text("utf-8").replace("`", "")
# The links to the patches, or "open", by title.
ROWS: dict[str, str] = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (open|\[[^|]+\.patch\)) \|$", PAGE, re.MULTILINE))
TIMEOUT = 120.0


def printed_by(tree: Path, folder: Path, code: str) -> str:
    """What code prints on the mlx-lm of a tree."""
    for name, text in DATA["files"].items():
        (folder / name).write_text(text)
    if not (fixture := folder / "conformance" / "fixture").exists():
        fixture.parent.mkdir()
        fixture.symlink_to(FIXTURE)
    done = in_tree(tree, folder, "-c", f"{code}\nimport os; os._exit(0)", timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"--- printed with the {tree.name}:", done.stdout, sep="\n")
    return done.stdout.removesuffix("\n")


@pytest.mark.series
@pytest.mark.parametrize("title", [title for title, fault in FAULTS.items() if "code" in fault])
def test_shows_its_fault(title: str, trees: list[Path], tmp_path: Path) -> None:
    why, code, printed = (FAULTS[title][key].removesuffix("\n") for key in ("why", "code", "printed"))
    print(f"--- {title}:", why, "--- the program:", code, sep="\n")
    # The data is about the releases that are pinned.
    pinned, mended = checkout().name.removeprefix("mlx-lm-") in RELEASES, ROWS[title] != "open"
    # What is mended is asked of the release, which does not change, in the full profile only.
    if pinned and (FULL or not mended):
        assert printed_by(trees[0], tmp_path, code) == printed
    if mended or (pinned and FULL):
        assert (printed_by(trees[1], tmp_path, code) != printed) == mended


@pytest.mark.series
def test_the_page_has_a_row_for_each_fault() -> None:
    assert list(ROWS) == list(FAULTS)
