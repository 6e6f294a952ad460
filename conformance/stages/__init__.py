"""Which tests hold after which stage of the series: stages.txt, and pytest's option --stage.

A line of stages.txt is a stage and a file, a file::function, or a file::function[word], those with a parameter of this
name, that holds from this stage on. The narrowest line of a test counts. What has no line holds from the last stage on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import ROOT
from conformance.series.patches import PATCHES

FILE = Path(__file__).with_name("stages.txt")


def order() -> list[str]:
    """The stages of the series, the first one first."""
    return list(dict.fromkeys(path.parent.name for path in PATCHES))


def read(text: str) -> dict[str, str]:
    """The stage from which on each file or function holds."""
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return {test: stage for stage, test in lines}


class Stage:
    """Collects what holds after a stage, and nothing else."""

    def __init__(self, stage: str, since: dict[str, str], stages: list[str]) -> None:
        if stage not in stages:
            raise pytest.UsageError(f"--stage {stage}: the stages are {', '.join(stages)}")
        self.since, self.last, self.reached = since, stages[-1], stages[: stages.index(stage) + 1]

    def holds(self, nodeid: str) -> bool:
        test, _, parameters = nodeid.partition("[")
        narrow = [f"{test}[{word}]" for word in (*parameters[:-1].split("-"), parameters[:-1])]
        lines = [line for line in (*narrow, test, test.split("::")[0]) if line in self.since]
        return (self.since[lines[0]] if lines else self.last) in self.reached

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """A file of a later stage may not be importable."""
        name = collection_path.relative_to(ROOT).as_posix()
        lines = {self.since[line] for line in self.since if line.split("::")[0] == name} or {self.last}
        return True if collection_path.name.startswith("test_") and not lines.intersection(self.reached) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if not self.holds(item.nodeid)])
        items[:] = [item for item in items if self.holds(item.nodeid)]
