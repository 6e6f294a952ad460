"""Which tests hold after which stage of the series: stages.txt, and pytest's option --stage.

A line of stages.txt is a stage and a file, or a file::function, that holds from this stage on. What has no line holds
from the last stage on.

python -m conformance.stages core .tox/scorecards/stage.json     # add what passed after a stage, see scripts/check.sh
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from conformance import ROOT

FILE = Path(__file__).with_name("stages.txt")


def order() -> list[str]:
    """The stages of the series, the first one first."""
    names = (ROOT / "patches" / "series").read_text().split()
    return list(dict.fromkeys(name.split("/")[0] for name in names))


def read(text: str) -> dict[str, str]:
    """The stage from which on each file or function holds."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {test: stage for stage, test in lines}


class Plugin:
    """Collects what holds after a stage, and nothing else."""

    def __init__(self, stage: str, lines: dict[str, str], stages: list[str]) -> None:
        if stage not in stages:
            raise pytest.UsageError(f"--stage {stage}: the stages are {', '.join(stages)}")
        reached = stages[: stages.index(stage) + 1]
        self.tests = {test for test, since in lines.items() if since in reached}
        self.files = {test.split("::")[0] for test in self.tests}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        name = collection_path.relative_to(ROOT).as_posix()
        if collection_path.name.startswith("test_") and name not in self.files:
            return True
        return None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if {test_of(item.nodeid), item.nodeid.split("::")[0]} & self.tests]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def test_of(nodeid: str) -> str:
    """The file::function of a test, without its parameters."""
    return nodeid.split("[")[0]


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
    stage, scorecard = sys.argv[1:]
    rows = json.loads(Path(scorecard).read_text())["rows"].values()
    found = holds({test: result["outcome"] for row in rows for test, result in row.items()})
    lines, stages = read(FILE.read_text()), order()
    for test in found:
        earlier = [since for name, since in lines.items() if name in (test, test.split("::")[0])]
        if not any(stages.index(since) <= stages.index(stage) for since in earlier):
            lines[test] = stage
    head = "".join(f"{line}\n" for line in FILE.read_text().splitlines() if line.startswith("#"))
    ordered = sorted(lines.items(), key=lambda line: (stages.index(line[1]), line[0]))
    FILE.write_text(head + "".join(f"{since} {test}\n" for test, since in ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
