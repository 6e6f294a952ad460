"""Which tests hold after which stage of the series: stages.txt, and pytest's option --stage.

A line of stages.txt is a stage and a file, a file::function, or a file::function[word], those with a parameter of this
name, that holds from this stage on. The narrowest line of a test counts. What has no line holds from the last stage on.
"""

from __future__ import annotations

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
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return {test: stage for stage, test in lines}


class Plugin:
    """Collects what holds after a stage, and nothing else."""

    def __init__(self, stage: str, lines: dict[str, str], stages: list[str]) -> None:
        if stage not in stages:
            raise pytest.UsageError(f"--stage {stage}: the stages are {', '.join(stages)}")
        self.is_last, self.lines = stage == stages[-1], lines
        self.reached = stages[: stages.index(stage) + 1]
        self.files = {test.split("::")[0] for test, since in lines.items() if since in self.reached}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        name = collection_path.relative_to(ROOT).as_posix()
        left_out = collection_path.name.startswith("test_") and name not in self.files and not self.is_last
        return True if left_out else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if self.is_last or self.holds(item.nodeid)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def holds(self, nodeid: str) -> bool:
        function, file, parameters = nodeid.split("[")[0], nodeid.split("::")[0], f"-{nodeid.partition('[')[2][:-1]}-"
        words = [test for test in self.lines if test.startswith(f"{function}[")]
        narrow = [test for test in words if f"-{test[:-1].partition('[')[2]}-" in parameters]
        return next((self.lines[test] for test in (*narrow, function, file) if test in self.lines), "") in self.reached
