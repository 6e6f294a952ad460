"""Reports of a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main
from conformance.tables import line


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
            (report, "BATCHES", (1, 4)),
            (report, "LENGTHS", (1, 4)),
            (report, "REPEATS", 1),
        ):
            patch.setattr(module, name, value)
        assert main(["report", "--model", str(FIXTURE), "--out", str(folder)]) == 0
    (path,) = folder.glob("report-fixture-*.json")
    return path


@pytest.fixture
def report(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.read_text())
    return found


def test_a_report_of_the_fixture(made: Path, report: dict[str, Any]) -> None:
    assert report["left_out"] == []
    assert [each["workload"] for each in report["speeds"]] == "rename delete lookup quote echo nothing_to_copy".split()
    assert all(each["parity"] and each["plain_tps"] > 0 for each in report["speeds"])
    assert report["speeds"][-1]["tokens_per_forward"] <= 1
    assert report["check"]["exit"] == 0
    assert [row["length"] for row in report["probe"]["rows"]] == [1, 2, 4]
    assert [(each["rows"], each["length"]) for each in report["batch"]] == [(1, 1), (1, 4), (4, 1), (4, 4)]
    text = made.with_suffix(".md").read_text()
    assert text.splitlines()[-1].startswith(f"| {report['about']['chip']}, ")
    assert "| 6 of 6 | exact | " in text
    # The report does not show whose machine it is.
    for private in (str(FIXTURE.parent), os.environ.get("USER") or "no user", os.uname().nodename):
        assert private not in made.read_text() + text


def test_other_text_counts_in_no_mean(report: dict[str, Any]) -> None:
    from conformance.check.page import page

    for each, speed in zip(report["speeds"], (2.0, 8.0, None, None, None, None), strict=True):
        each.update(speed=speed, parity=speed is not None)
    *_, last = page(report).splitlines()
    assert "| 4.00 | 2.00 | 2 of 6 |" in last


def test_the_line_of_a_page_fits_the_table_of_the_document() -> None:
    from conformance.check.page import COLUMNS

    assert f"\n{line(COLUMNS)}\n" in (ROOT / "docs" / "benchmarks.md").read_text()


def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    assert main(["report", "--model", str(FIXTURE), "--out", str(tmp_path), "--minutes", "0"]) == 0
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert (report["check"], report["probe"], report["speeds"], len(report["left_out"])) == (None, None, [], 9)
    text = path.with_suffix(".md").read_text()
    assert "Left out: rename" in text
    assert "| 0 of 0 | not asked | " in text


def test_the_script_asks_its_python_from_any_folder(tmp_path: Path) -> None:
    script, env = ROOT / "scripts" / "report.sh", os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([script, "--model", "nowhere"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr[:8]) == (3, "nowhere,")
