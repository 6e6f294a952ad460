"""What is expected to fail, for each release with and without the series.

conformance/expectations/<release>-<stock or patched>.txt holds ids of tests, one a line, each below the reason it fails
for (lines that begin with #). An id that ends in * stands for all that begin like it. A reason says which of three
things it is, "No such API: ", "Wrong: " (or "Upstream model fault, MODEL: ") or "Refused: ", as a tree may.
An expected failure that passes is a failure, and so is an id of no test. A version that has no file borrows that of the
nearest release: there, what passes is an improvement, and an id of no test says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest


@dataclass(frozen=True)
class Expectation:
    where: str
    id: str
    reason: str

    @property
    def file(self) -> str:
        return self.id.split("::")[0]

    def covers(self, nodeid: str) -> bool:
        return nodeid.startswith(self.id[:-1]) if self.id.endswith("*") else nodeid == self.id


def read(path: Path) -> list[Expectation]:
    """The expectations of a file; none if there is no such file."""
    found, reason = [], ""
    lines = path.read_text().splitlines() if path.exists() else []
    for number, (line, before) in enumerate(zip(lines, ["", *lines], strict=False), 1):
        if line.startswith("#"):
            reason = f"{reason} {line.lstrip('# ')}" if before.startswith("#") else line.lstrip("# ")
        elif line.strip():
            if not reason:
                raise pytest.UsageError(
                    f"{path}:{number}: an expectation needs its reason in a line above that begins with #."
                )
            found.append(Expectation(f"{path.parent.name}/{path.name}:{number}", line.strip(), reason))
        else:
            reason = ""
    return found


class Problem(pytest.Item):
    """A test that fails with one sentence."""

    def __init__(self, *, sentence: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sentence = sentence

    def runtest(self) -> NoReturn:
        pytest.fail(self.sentence, pytrace=False)


class Unimportable(pytest.Module):
    """A test file that needs names which this mlx-lm does not have: it is one failing test, ``import``."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        try:
            self.obj  # noqa: B018 - imports the file
        except self.CollectError as error:
            missing = [line for line in str(error).splitlines() if "mlx_lm" in line and "Error:" in line]
            if not missing:
                raise
            yield Problem.from_parent(self, name="import", sentence=missing[-1].lstrip("E "))
            return
        yield from super().collect()


class Plugin:
    """Of the file of a release, its own (``strict``) or one that it borrows."""

    def __init__(self, path: Path, strict: bool = True) -> None:
        self.expectations = read(path)
        self.name, self.strict = path.stem, strict

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module:
        module: pytest.Module = Unimportable.from_parent(parent, path=module_path)
        return module

    def pytest_report_header(self) -> str:
        borrowed = "" if self.strict else ", of the nearest release"
        return f"{self.name}: {len(self.expectations)} expectations{borrowed}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Improvements, which are no failures."""
        improved = [report.nodeid for report in terminalreporter.getreports("xpassed")]
        if improved:
            terminalreporter.write_sep("=", f"improved since {self.name}: {len(improved)}")
            for nodeid in improved:
                terminalreporter.write_line(f"IMPROVED {nodeid}")

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        parts = any("::" in argument for argument in config.args)
        stale = [] if parts or not self.strict else self.stale([item.nodeid for item in items], config.rootpath)
        for item in items:
            for one in self.expectations:
                if one.covers(item.nodeid):
                    item.add_marker(pytest.mark.xfail(reason=one.reason, strict=self.strict))
                    break
        first = items[0] if items else None
        if first is not None:
            items += [
                Problem.from_parent(
                    first.session, name=one.where, nodeid=one.where, sentence=f"{one.where}: no test is {one.id}"
                )
                for one in stale
            ]

    def stale(self, nodeids: Iterable[str], root: Path) -> list[Expectation]:
        """The expectations that cover no test, of the files that were collected and of those that are not there."""
        nodeids = list(nodeids)
        files = {nodeid.split("::")[0] for nodeid in nodeids}
        looked_at = [one for one in self.expectations if one.file in files or not (root / one.file).exists()]
        return [one for one in looked_at if not any(one.covers(nodeid) for nodeid in nodeids)]
