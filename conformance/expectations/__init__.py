"""The expected failures of each release, with and without the series.

<release>-<stock or patched>.txt has blocks with an empty line between them: lines that begin with # say why, the others
are ids of tests. An id that ends in * stands for all with that beginning. A reason begins with its kind: "Wrong: ",
"Not offered: ", or "Refused: " for an error that a tree is free to raise. An expected failure that passes is a failure,
and so is an id that names no test. A version without a file uses that of the nearest release, where both are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from packaging.version import Version

FOLDER = Path(__file__).parent


def nearest(version: str, flavour: str, folder: Path = FOLDER) -> Path:
    """The file of a version, else of the newest release before it, else of the oldest release."""
    ending = f"-{flavour}.txt"
    files = {Version(path.name.removesuffix(ending)): path for path in folder.glob(f"*{ending}")}
    return files[max((release for release in files if release <= Version(version)), default=min(files))]


@dataclass(frozen=True)
class Expectation:
    id: str
    reason: str

    def covers(self, nodeid: str) -> bool:
        return nodeid.startswith(self.id[:-1]) if self.id.endswith("*") else nodeid == self.id


def read(path: Path) -> list[Expectation]:
    found = []
    for block in path.read_text().split("\n\n"):
        lines = block.splitlines()
        reason = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        found += [Expectation(line, reason) for line in lines if not line.startswith("#")]
    return found


class Problem(pytest.Item):
    """A test that always fails, with one sentence."""

    def __init__(self, *, sentence: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sentence = sentence

    def runtest(self) -> NoReturn:
        pytest.fail(self.sentence, pytrace=False)


class Expectations:
    """Applies a file: that of the release (``strict``), or that of the nearest one."""

    def __init__(self, path: Path, strict: bool) -> None:
        self.path, self.strict, self.expectations = path, strict, read(path)

    def pytest_report_header(self) -> str:
        borrowed = "" if self.strict else ", of the nearest release"
        return f"{self.path.stem}: {len(self.expectations)} expectations{borrowed}"

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """A file that imports names which this mlx-lm lacks counts as one failing test, ``import``."""
        report = yield
        lines = str(report.longrepr).splitlines() if isinstance(collector, pytest.Module) and report.failed else []
        if missing := [line for line in lines if "mlx_lm" in line and "Error:" in line]:
            problem = Problem.from_parent(collector, name="import", sentence=missing[-1].lstrip("E "))
            if "mark.asked(" in collector.path.read_text("utf-8"):
                problem.add_marker("asked")
            report.outcome, report.longrepr, report.result = "passed", None, [problem]
        return report

    @pytest.hookimpl(tryfirst=True)  # before -k and -m remove tests
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        files = {item.nodeid.split("::")[0] for item in items}
        whole = self.strict and bool(items) and not any("::" in argument for argument in config.args)
        for one in self.expectations:
            covered = [item for item in items if one.covers(item.nodeid)]
            for item in covered:
                item.add_marker(pytest.mark.xfail(reason=one.reason, strict=self.strict))
            file = one.id.split("::")[0]
            # Of a file that is there and was not collected nothing is known.
            if whole and not covered and (file in files or not (config.rootpath / file).exists()):
                sentence = f"{self.path.name}: no test is {one.id}"
                name = f"{self.path.name}::{one.id}"
                items.append(Problem.from_parent(items[0].session, name=name, nodeid=name, sentence=sentence))
