"""Reports of a machine, and errors for files that are not reports."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main
from conformance.check import machines

Report = dict[str, Any]
MARKED = "Before.\n<!-- reports -->\nold\n<!-- end reports -->\nAfter.\n"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks.md").write_text(MARKED)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report of the fixture, at small settings."""
    folder = tmp_path_factory.mktemp("report")
    # These modules need the series.
    from conformance.check import check, probe, report

    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (probe, "QUICK", (1, 2, 4)),
            (probe, "CONTEXTS", (16,)),
            (probe, "QUICK_REPEATS", 1),
            (check, "RUNS", 1),
            (report, "TOKENS", 16),
            (report, "ROUNDS", 2),
            (report, "BATCHES", (1, 4)),
            (report, "LENGTHS", (1, 4)),
            (report, "REPEATS", 1),
        ):
            patch.setattr(module, name, value)
        assert main(["report", "--model", str(FIXTURE), "--out", str(folder)]) == 0
    (path,) = folder.glob("report-fixture-*.json")
    return path


@pytest.fixture
def report(made: Path) -> Report:
    found: Report = json.loads(made.read_text())
    return found


def test_a_report_of_the_fixture(made: Path, report: Report) -> None:
    assert report["left_out"] == []
    assert [each["workload"] for each in report["speeds"]] == "rename delete lookup quote echo nothing_to_copy".split()
    assert all(each["same"] and each["plain_tps"] > 0 for each in report["speeds"])
    assert report["check"]["exit"] == 0
    assert [row["length"] for row in report["probe"]["rows"]] == [1, 2, 4]
    assert {(each["rows"], each["length"]) for each in report["batch"]} == {(1, 1), (1, 4), (4, 1), (4, 4)}
    text = made.with_suffix(".md").read_text()
    assert text == machines.page(report)
    assert "check: exact" in text
    # The report does not show whose machine it is.
    for private in (str(FIXTURE.parent), os.environ.get("USER") or "no user", os.uname().nodename):
        assert private not in made.read_text() + text


def test_nothing_to_copy_has_nothing_to_copy(fixture: tuple[Any, Any]) -> None:
    from conformance.bench.models import Subject
    from conformance.check.report import timed

    assert timed(Subject("fixture", "fp32", *fixture), "nothing_to_copy")["tokens_a_forward"] <= 1


def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    assert main(["report", "--model", str(FIXTURE), "--out", str(tmp_path), "--minutes", "0"]) == 0
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert machines.read(path)["check"] == "not asked"
    assert (report["check"], report["probe"], report["speeds"], len(report["left_out"])) == (None, None, [], 9)
    assert "Left out: rename" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize("model", ["nowhere/nothing", "a folder"])
def test_a_model_that_is_none(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path) if model == "a folder" else model
    assert main(["report", "--model", model, "--out", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith(model)
    assert not list(tmp_path.iterdir())


def on(report: Report, chip: str, **changes: Any) -> Report:
    other = copy.deepcopy(report)
    other["about"] |= {"chip": chip, **changes}
    return other


def test_merged_by_chip(report: Report, docs: Path, tmp_path: Path) -> None:
    paths = []
    for name, each in {
        "a": on(report, "Apple M4 Pro"),
        "b": on(report, "AMD EPYC"),
        "c": on(report, "Apple M4 Pro", made="2036-12-24"),
    }.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(each))
    for some in (paths[:2], paths[2:]):
        assert main(["merge", *map(str, some), "--docs", str(docs)]) == 0
    kept = json.loads((docs / "benchmarks" / "reports.json").read_text())
    assert [(each["chip"].split(",")[0], each["made"]) for each in kept] == [
        ("AMD EPYC", report["about"]["made"]),
        ("Apple M4 Pro", "2036-12-24"),
    ]
    text = (docs / "benchmarks.md").read_text()
    assert text.startswith("Before.\n<!-- reports -->\n| chip |")
    assert text.endswith("|\n<!-- end reports -->\nAfter.\n")
    assert [line.split(",")[0] for line in text.splitlines()[4:6]] == ["| AMD EPYC", "| Apple M4 Pro"]


def damage(report: Report, at: str, value: Any) -> str:
    report = copy.deepcopy(report)
    part: Any = report
    *path, last = at.split(".")
    for name in path:
        part = part[int(name)] if name.isdigit() else part[name]
    part[last] = value
    return json.dumps(report)


# The content of a file, and the error for it.
FILES: dict[str, tuple[Callable[[Report], str], str]] = {
    "cut off": (lambda report: json.dumps(report)[:-20], "is damaged: it is no JSON"),
    "no text": (lambda _: "\udcff", "is damaged: it is no JSON"),
    "deep": (lambda _: "[" * 100_000, "is damaged"),
    "a part is gone": (
        lambda report: json.dumps({k: v for k, v in report.items() if k != "batch"}),
        "it lacks 'batch'",
    ),
    "a word for a number": (
        lambda report: damage(report, "speeds.0.speed", "fast"),
        "could not convert string to float: 'fast'",
    ),
    "no number": (lambda report: damage(report, "batch.1.cost", float("nan")), "NaN is no number"),
    "too large": (lambda report: damage(report, "batch.3.cost", "many").replace('"many"', "1e999"), "inf is no number"),
    "a list for a name": (lambda report: damage(report, "about.chip", []), "[] is no text"),
    "a word for a part": (lambda report: damage(report, "batch", ["x"]), "is damaged: 'str' object has no"),
    "foreign": (lambda _: '{"runs": []}', "is no report of scripts/report"),
    "a list": (lambda _: "[1, 2]", "is no report of scripts/report"),
    "older": (lambda report: damage(report, "format", 0), "was made by an older scripts/report.sh (format 0"),
    "newer": (lambda report: damage(report, "format", 99), "was made by a newer scripts/report.sh"),
}


@pytest.mark.planted
@pytest.mark.parametrize("what", FILES)
def test_what_is_no_report_is_found(
    what: str, report: Report, docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Path
) -> None:
    """The error is one sentence, and the good file beside it is not merged either."""
    write, said = FILES[what]
    path = tmp_path / "theirs.json"
    path.write_bytes(write(report).encode(errors="surrogateescape"))
    assert main(["merge", str(made), str(path), "--docs", str(docs)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path} ")
    assert said in error
    assert len(error.splitlines()) == 1
    assert (docs / "benchmarks.md").read_text() == MARKED
    assert not (docs / "benchmarks" / "reports.json").exists()


def test_names_do_no_harm_in_a_page(report: Report) -> None:
    text = machines.by_chip([machines.line_of(on(report, "a | b\n<script>[x](http://y)" + "z" * 999, model="`m`"))])
    assert len(text) < 999
    assert len(text.splitlines()) == 3
    assert not set("<>[]`") & set(text)
    assert {line.count("|") for line in text.splitlines()} == {len(machines.COLUMNS) + 1}


def test_the_script(report: Report, docs: Path, made: Path) -> None:
    """The table needs no mlx, and a path may be relative to the current folder."""
    script = [str(ROOT / "scripts" / "report.sh"), "--merge", made.name, "--docs", str(docs)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHON": sys.executable}
    done = subprocess.run(script, cwd=made.parent, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 reports are new" in done.stdout
