"""Expected failures are explained, the stages collect what holds, and a run reports what the scorecard shows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from conformance import ROOT, expectations, stages
from conformance.judging.results import ABSENT, BROKEN, HOLDS, INCONCLUSIVE, REFUSED, SKIPPED, Results, read
from conformance.scorecard import main
from conformance.series.patches import DEFAULT, RELEASES

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
pytest_plugins = ["pytester"]

FAULTS = (ROOT / "conformance" / "upstream" / "faults.toml").read_text("utf-8")
TITLES = set(tomllib.loads(FAULTS)["fault"])


def test_the_nearest_release(tmp_path: Path) -> None:
    for one in ("0.32.1", "0.32.2"):
        (tmp_path / f"{one}-stock.txt").touch()
    nearer = {"0.32.1": "0.32.1", "0.33.0": "0.32.2", "0.32.2.dev1": "0.32.1", "0": "0.32.1", "0.100.0": "0.32.2"}
    for version, release in nearer.items():
        assert expectations.nearest(version, "stock", tmp_path).name == f"{release}-stock.txt", version


def has_reason(one: expectations.Expectation) -> bool:
    """What is wrong has a section of docs/upstream.md."""
    section = re.search(r"docs/upstream\.md: (.*)\.$", one.reason)
    kind = one.reason.partition(": ")[0]
    known = section[1] in TITLES if section else kind != "Wrong"
    return known and kind in ("Not offered", "Refused", "Wrong")


def test_each_expectation_says_why() -> None:
    names = {f"{release}-{flavour}.txt" for release in RELEASES for flavour in ("stock", "patched")}
    assert {path.name for path in expectations.FOLDER.glob("*.txt")} == names
    assert not [
        one for path in expectations.FOLDER.glob("*.txt") for one in expectations.read(path) if not has_reason(one)
    ]
    assert not expectations.read(expectations.FOLDER / f"{DEFAULT}-patched.txt"), (
        "the series on the default release fails no test"
    )


def test_each_line_of_a_stage_names_a_test() -> None:
    since = stages.read(stages.FILE.read_text())
    for test, stage in since.items():
        file, _, name = test.partition("::")
        assert stage in stages.order(), f"{test}: {stage} is no stage"
        assert (ROOT / file).exists(), f"{file} is not there"
        assert not name or f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), f"{test} is not there"


def test_the_narrowest_line_of_a_stage_counts() -> None:
    since = stages.read("# a head\none a/test_b.py\ntwo a/test_b.py::test_x[1]\n")
    first, last = (stages.Stage(stage, since, ["one", "two"]) for stage in ("one", "two"))
    tests = ["a/test_a.py::test_w", "a/test_b.py::test_x[1-a]", "a/test_b.py::test_y"]
    assert [test for test in tests if first.holds(test)] == tests[2:]
    assert all(last.holds(test) for test in tests)
    assert [first.pytest_ignore_collect(ROOT / "a" / name) for name in ("test_a.py", "test_b.py")] == [True, None]


# What a test does, and what is read of it: the outcome, and what it says.
CASES = {
    "asserts": ('assert 1 == 2, "it is wrong\\nand more"', BROKEN, "it is wrong"),
    "refused": ('ask.refused(ValueError("no"))', REFUSED, "ValueError: no"),
    "not_offered": ('ask.not_offered("it")', ABSENT, "it"),
    "inconclusive": ('ask.not_shown("no drafts")', INCONCLUSIVE, "no drafts"),
    "skipped": ('pytest.skip("no such chip")', SKIPPED, "no such chip"),
    "expected": ('ask.broken("a small number")', BROKEN, "a small number"),
    "unexpected": ("pass", HOLDS, "[XPASS(strict)] Wrong: small numbers."),
}
TESTS = """
import pytest
from conformance.oracle import findings as ask

@pytest.mark.asked("C1 snapshot", ours=True)
def test_asked(): ask.broken("token 7 is lost", "print(7)", {"a case": "lost"})
@pytest.fixture
def after():
    yield
    assert False, "after"
def test_teardown(after): pass
""" + "".join(f"def test_{name}(): {does}\n" for name, (does, *_) in CASES.items())
EXPECTED = """# Wrong: small
# numbers.
contracts/test_c4_some.py::test_exp*
contracts/test_c4_some.py::test_unexpected
test_gone.py::test_it

# Not offered: it has no drafts.
test_other.py::import
"""
# Of 12 tests of C4, as many as pass with the series, and of none of C1.
SHOWN = """
| C1 snapshot | 🟢 0 | 🔴 0, 1 failed |
| C4 parity | 🟢 12 | 🔴 0, 3 failed, 1 wrong, 1 refused, 2 skipped, 5 not offered |
"""
HELD = '{{"nodeid": "contracts/test_c4_a.py::{}", "outcome": "passed", "user_properties": [], "longrepr": null}}\n'


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, near: bool) -> Results:
    """The report of TESTS with the expectations of this release, or of one near it."""

    def file(release: str, flavour: str) -> Path:
        path = pytester.path / f"{'0' if near else release}-{flavour}.txt"
        path.write_text(EXPECTED)
        return path

    # Other plugins take seconds to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr("conformance.plugin.nearest", file)
    pytester.makeconftest('pytest_plugins = ["conformance.plugin"]')
    pytester.makepyfile(test_other="from mlx_lm.nothing_like_it import drafts")
    (pytester.mkdir("contracts") / "test_c4_some.py").write_text(TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "--adapter=stock", "--report=stock.jsonl")
    return {test.partition("::test_")[2] or test: one for test, one in read(pytester.path / "stock.jsonl")[1].items()}


@pytest.mark.planted
def test_each_outcome(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(pytester, monkeypatch, near=False)
    assert [(found[test].outcome, found[test].message) for test in CASES] == [case[1:] for case in CASES.values()]
    assert (found["teardown"].outcome, found["teardown"].message) == (BROKEN, "after")
    asked = found["asked"]
    assert (asked.outcome, asked.message, asked.example) == (BROKEN, "token 7 is lost", "print(7)")
    assert (asked.asked, asked.ours, asked.cases) == ("C1 snapshot", True, {"a case": "lost"})
    assert found["expected"].expected == "Wrong: small numbers."
    assert found["test_other.py::import"].expected == "Not offered: it has no drafts."
    assert [one.message for one in found.values() if "no test is test_gone.py::test_it" in one.message]
    (pytester.path / "patched.jsonl").write_text("".join(map(HELD.format, range(12))))
    document = pytester.path / "releases.md"
    document.write_text("a\n<!-- scorecard -->\nold\n<!-- end scorecard -->\nb\n")
    assert main(["releases.md", "patched.jsonl", "stock.jsonl"]) == 0
    assert "**Not as expected**: stock has 5 failed.\n" in capsys.readouterr().out
    assert all(line in document.read_text() for line in SHOWN.splitlines())
    assert re.search(r"- stock: mlx-lm \S+, mlx \S+, .*[CG]PU, ", document.read_text())
    assert document.read_text().endswith("<!-- end scorecard -->\nb\n")
    main(["releases.md", "patched.jsonl"])
    assert "**As expected**: in patched no tests fail but those that should." in capsys.readouterr().out


@pytest.mark.planted
def test_the_file_of_another_release_may_be_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(pytester, monkeypatch, near=True)
    assert (found["unexpected"].outcome, found["unexpected"].message) == (HOLDS, "")
    assert not [one.message for one in found.values() if "no test is" in one.message]
