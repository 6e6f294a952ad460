"""pytest --scorecard=FILE writes the result of each test of a run into one JSON file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import ROOT
from conformance.scorecard.cells import EXPECTED, FAILED, LEFT_OUT, PASSED, SKIPPED
from conformance.scorecard.rows import ROWS, Row, find
from conformance.testing.tally import TALLY


def sentence(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of the error of a failed test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else report.longreprtext).strip().splitlines()
    # xdist puts a line with the name of the process above the error.
    said = next((str(line) for line in lines if not line.startswith("[gw")), "")
    # The result is for readers who have other folders.
    return said.replace(f"{ROOT}{os.sep}", "")[:300]


def outcome(report: pytest.TestReport) -> tuple[str, str]:
    """The outcome of a test, and its reason."""
    if hasattr(report, "wasxfail"):
        return (EXPECTED if report.skipped else FAILED), report.wasxfail.removeprefix("reason: ")
    if report.skipped:
        # The place of the skip, its line, and the reason.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return SKIPPED, reason.removeprefix("Skipped: ")
    return (FAILED, sentence(report)) if report.failed else (PASSED, "")


def row_of(item: pytest.Item, rows: Sequence[Row] = ROWS) -> Row:
    """The row of a test.

    Raises:
        LookupError: if its folder and marks name no row, or several.
    """
    contract = item.get_closest_marker("contract")
    mark = "planted" if item.get_closest_marker("planted") else str(contract.args[0]) if contract else ""
    return find(item.nodeid, mark, rows)


# Marks of tests about this repository and its suite. They do not depend on the installed mlx-lm.
ELSEWHERE = ("repository", "selftest", "series")


class Plugin:
    """Collects results. It serves a run in one process, the main process of several, and a worker process."""

    def __init__(self, path: Path, about: dict[str, str], rows: Sequence[Row] = ROWS) -> None:
        self.path, self.about, self.rows = path, about, rows
        self.said = f"scorecard: {path}"
        # The collected tests, and those that -k and -m removed, without the tests about this repository.
        self.collected: set[str] = set()
        self.left_out: set[str] = set()
        # The row of each test whose file could be imported.
        self.row: dict[str, str] = {}
        self.without_a_row = ""
        self.tests: dict[str, dict[str, Any]] = {}

    def note(self, items: Sequence[pytest.Item]) -> None:
        try:
            self.row |= {item.nodeid: row_of(item, self.rows).name for item in items}
        except LookupError as error:
            self.without_a_row = str(error)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        left_out = [item for item in items if not any(map(item.get_closest_marker, ELSEWHERE))]
        self.left_out |= {item.nodeid for item in left_out}
        self.note(left_out)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected |= {item.nodeid for item in session.items}
        self.note(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self.collected |= set(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        # A process that died has no results.
        left_out, row = getattr(node, "workeroutput", {}).get("scorecard", ([], {}))
        self.left_out |= set(left_out)
        self.row |= row

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = Counter(TALLY)
        try:
            yield
        finally:
            item.user_properties += list((TALLY - before).items())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tests[f"{report.nodeid}::import"] = {"outcome": FAILED, "reason": sentence(report)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        result, reason = outcome(report)
        if report.when != "call" and result == PASSED:
            return
        about = {"outcome": result, "reason": reason} if reason else {"outcome": result}
        counts = {name: n for name, n in report.user_properties if name in ("examples", "tokens")}
        self.tests[report.nodeid] = about | counts

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config = session.config
        if hasattr(config, "workeroutput"):
            config.workeroutput["scorecard"] = sorted(self.left_out), self.row
            return
        if config.option.collectonly:
            self.said = "scorecard: not written. Nothing was run."
            return
        for test in (self.collected | self.left_out) - set(self.tests):
            self.tests[test] = {"outcome": LEFT_OUT}
        if self.without_a_row:
            self.said = f"scorecard: not written. {self.without_a_row}"
            return
        rows: dict[str, dict[str, Any]] = {}
        named = {row.name: row for row in self.rows}
        for test, result in sorted(self.tests.items()):
            row = named[self.row[test]] if test in self.row else find(test, rows=self.rows)
            rows.setdefault(row.name, {})[test] = result
        # A run with paths does not collect the other files.
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.about | {"whole": whole, "rows": rows}, indent=1) + "\n", "utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(self.said)
