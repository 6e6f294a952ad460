"""Reports of a machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import FIXTURE, ROOT
from conformance.__main__ import main
from conformance.check.prompts import built_in
from conformance.tables import line

# Settings of the modules of conformance/check, which need the series, for a quick report.
SMALL = {"probe.QUICK": (1, 2), "probe.CONTEXTS": (16,), "probe.QUICK_REPEATS": 1, "check.RUNS": 1}
SMALL |= {"report.TOKENS": 16, "report.BATCHES": (1, 2), "report.LENGTHS": (1, 2), "report.REPEATS": 1}
SHORT = {"code, short": built_in()["code, short"]}
SMALL |= {"report.WORKLOADS": ("rename", "quote", "nothing_to_copy"), "report.built_in": lambda: SHORT}


def test_a_report_of_the_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(f"conformance.check.{name}", value)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--model", str(FIXTURE)]) == 0
    (path,) = tmp_path.glob("report-fixture-*.json")
    report, text = json.loads(path.read_text()), path.with_suffix(".md").read_text()
    assert report["left_out"] == []
    assert all(each["parity"] and each["plain_tps"] > 0 for each in report["speeds"])
    assert [(each["rows"], each["length"]) for each in report["batch"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert re.search(rf"(?s)\ncheck exact\n.*, {os.cpu_count()} cores, load .* exact, 3 of 3 texts the same \|$", text)
    # The report does not show whose machine it is.
    for private in (str(FIXTURE.parent), os.environ.get("USER") or "no user", os.uname().nodename):
        assert private not in path.read_text() + text

    from conformance.check.report import COLUMNS, page

    # Other text counts in no mean.
    for each, speed in zip(report["speeds"], (2.0, 8.0, None), strict=True):
        each.update(speed=speed, parity=speed is not None)
    assert "| 4.00 | 2.00 | exact, 2 of 3 " in "".join(page(report)).splitlines()[-1]
    assert f"\n{line(COLUMNS)}\n" in (ROOT / "docs" / "benchmarks.md").read_text()
    # A report that is not whole has no line for the table.
    del report["check"]
    report["left_out"] = ["check"]
    assert "not complete, so it has no line for the table" in "".join(page(report)).splitlines()[-1]


BUSY = "import mlx_lm, runpy, sys; mlx_lm.load = lambda _: print(flush=True) or sum(range(10**12)); sys.argv[1:] = "


def test_ctrl_c_stops_a_pass_that_takes_long() -> None:
    program = f"{BUSY}['report', '--model', 'any']; runpy.run_module('conformance', run_name='__main__')"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=2) == -signal.SIGINT
