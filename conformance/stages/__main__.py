"""Add to stages.txt what passed after a stage.

scripts/check.sh --stage core --other-tests                       # the tests that have no line for this stage yet
python -m conformance.stages core .tox/scorecards/stage.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from conformance.stages.plugin import FILE, order, read, test_of


def holds(outcomes: dict[str, str]) -> set[str]:
    """The files, or else the functions, of which at least one test passed and none failed."""
    files: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for nodeid, outcome in outcomes.items():
        files[nodeid.split("::")[0]][test_of(nodeid)].add(outcome)
    found = set()
    for file, functions in files.items():
        good = {name for name, seen in functions.items() if "passed" in seen and "failed" not in seen}
        whole = all("failed" not in seen for seen in functions.values())
        found |= {file} if good and whole else good
    return found


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m conformance.stages", description=__doc__, formatter_class=form)
    parser.add_argument("stage", choices=order(), help="the stage that the tests ran on")
    parser.add_argument("scorecard", type=Path, help="the results of that run")
    args = parser.parse_args()
    rows = json.loads(args.scorecard.read_text())["rows"].values()
    found = holds({test: result["outcome"] for row in rows for test, result in row.items()})
    lines, stages = read(FILE.read_text()), order()
    for test in found:
        earlier = [since for name, since in lines.items() if name in (test, test.split("::")[0])]
        if not any(stages.index(since) <= stages.index(args.stage) for since in earlier):
            lines[test] = args.stage
    head = "".join(f"{line}\n" for line in FILE.read_text().splitlines() if line.startswith("#"))
    ordered = sorted(lines.items(), key=lambda line: (stages.index(line[1]), line[0]))
    FILE.write_text(head + "".join(f"{since} {test}\n" for test, since in ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
