"""Check, probe and report run where Python has only what the wheel brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conformance import FIXTURE

# What .venv does not have, settings for a quick run, and each command.
PROGRAM = """
import sys
sys.modules |= dict.fromkeys(["pytest", "hypothesis", "requests", "openai", "jsonschema", "llguidance", "PIL"])
from contextlib import suppress
from conformance.__main__ import main
with suppress(SystemExit):
    main(["--help"])
from conformance.check import check, probe, report
check.RUNS, probe.QUICK, probe.CONTEXTS, probe.QUICK_REPEATS, report.TOKENS = 1, (1, 2), (16,), 1, 16
report.WORKLOADS, built_in = ("rename", "nothing_to_copy"), check.built_in()
check.built_in = report.built_in = lambda: {"code, short": built_in["code, short"]}
for command in ("check --max-tokens 16", "probe --quick", "report --minutes 0", "report"):
    assert main([*command.split(), "--model", sys.argv[1], "--json", "found"]) == 0
"""
SAID = ["usage: ", "exact: drafting changes no token", "identical: a block of up to 2 tokens", "left out: TimeoutError"]
SAID += ["2 workloads of 2 have the same text: "]


def test_each_command_needs_only_what_the_wheel_brings(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MLX_DISABLE_COMPILE": "1"}
    run = [sys.executable, "-c", PROGRAM, str(FIXTURE)]
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [words for words in SAID if words not in done.stdout] == []
    report = (tmp_path / "found").read_text()
    assert {"check", "rename", "probe", "weights", "load"} <= json.loads(report).keys()
    # It does not show whose machine it is.
    assert not [private for private in (str(FIXTURE.parent), os.uname().nodename) if private in report]
