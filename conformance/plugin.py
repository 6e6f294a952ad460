"""The suite's plugin of pytest: its options, the adapters, the lists of tests, and the report of a run."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from conformance import stages
from conformance.adapters import Adapters, Unusable, find, load
from conformance.device import device
from conformance.expectations import Expectations, nearest
from conformance.oracle.profiles import seed
from conformance.subjects.decoded import FAMILIES

# The tests of the suite itself do not depend on the release, so one run of them is enough.
SELFTEST = ("conformance/judging/", "conformance/check/", "conformance/lab/")
# These tests wait for other processes. Those that wait longest come first.
WAITING = ["server/test_stops.py", "repository/test_series.py", "server/"]
WAITING += ["contracts/test_c9_", "commands/", "chat/"]
# What the judge and the scorecard read of pytest's reports.
REPORTED = ("nodeid", "outcome", "longrepr", "wasxfail", "user_properties")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--adapter", action="append", metavar="NAME|FILE", help="an adapter; default: all that fit")
    parser.addoption("--report", type=Path, metavar="FILE", help="write pytest's report of each test as JSON")
    parser.addoption("--limit", type=float, metavar="S", help="stop a test after so many seconds")
    parser.addoption("--stage", metavar="NAME", help="only the tests that hold after this stage of the series")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(os, "SCHED_BATCH") and not config.getoption("benchmark_enable", False):
        # mlx wakes a thread for each operation. So it does not interrupt the one that goes on to the next operation.
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    flavour = "patched" if find_spec("mlx_lm.draft") else "stock"
    release = mlx_lm.__version__.split("+")[0]
    expected = nearest(release, flavour)
    register = config.pluginmanager.register
    if (stage := config.getoption("--stage")) is not None:
        register(stages.Stage(stage, stages.read(stages.FILE.read_text()), stages.order()))
    # What the last stage is expected to fail may not be there yet.
    register(Expectations(expected, strict=stage is None and expected.stem == f"{release}-{flavour}"))
    register(Parameters(config.getoption("--adapter")), "parameters")
    if (limit := config.getoption("--limit")) is not None:
        register(Limit(limit))
    if (report := config.getoption("--report")) is not None and not hasattr(config, "workerinput"):
        register(Report(report, config))


@pytest.hookimpl(tryfirst=True)  # before -m removes tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order and mark the tests, and note what the report says of their marks."""
    for i, item in enumerate(items):
        item.user_properties.append(("order", i))
        if (contract := item.get_closest_marker("contract")) is not None:
            item.user_properties.append(("contract", contract.args[0]))
        if (asked := item.get_closest_marker("asked")) is not None:
            # A file that cannot be imported has the mark alone.
            item.user_properties.append(("asked", asked.args[0] if asked.args else "?"))
            item.user_properties.append(("ours", asked.kwargs.get("ours", False)))
        if item.get_closest_marker("planted") or item.nodeid.startswith(SELFTEST):
            item.add_marker("selftest")

    def place(item: pytest.Item) -> int:
        path = item.nodeid.removeprefix("conformance/")
        return next((i for i, start in enumerate(WAITING) if path.startswith(start)), len(WAITING))

    # One of several workers begins with what waits, so that the others have the cores.
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections: a server collects for each model it loads, and as it ends."""
    gc.freeze()


def versions() -> str:
    return f"mlx-lm {mlx_lm.__version__}, mlx {version('mlx')}, {device()}"


def pytest_report_header() -> str:
    return f"{versions()}, {mlx_lm.__file__}, programs of CONFORMANCE_SEED={seed()}"


class Parameters:
    """A test with the arguments ``family`` and ``adapter`` is run for each kind of model, and one with ``command`` and
    ``adapter`` for each command.
    """

    def __init__(self, names: list[str] | None) -> None:
        try:
            self.adapters = Adapters([load(name) for name in names]) if names else find()
        except Unusable as error:
            raise pytest.UsageError(str(error)) from error
        self.families = FAMILIES

    def pytest_report_header(self) -> str:
        return f"through the adapters {self.adapters.name}"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        asked = metafunc.fixturenames if "adapter" in metafunc.fixturenames else []
        if "family" in asked:
            # A file names the families that its tests cannot ask.
            without = getattr(metafunc.module, "WITHOUT", ())
            chosen = [family for family in self.families if family.name not in without]
            metafunc.parametrize("family", chosen, ids=[family.name for family in chosen])
        if "command" in asked:
            metafunc.parametrize("command", dict.fromkeys(["generate", "chat", "server", *self.adapters.commands]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """The series refuses nothing, and each test of it says something. What a test says of its cases is noted."""
        report = yield
        error = call.excinfo.value if call.excinfo else None
        reason = str(error.msg) if isinstance(error, pytest.skip.Exception) else ""
        if self.adapters.is_series and reason.startswith(("inconclusive", "refused")):
            report.outcome, report.longrepr = "failed", reason
        if cases := getattr(error, "cases", None):
            report.user_properties.append(("cases", cases))
        return report


def note(request: Any, name: str, value: object) -> None:
    """A number of a run, to compare with that of the base."""
    request.node.user_properties.append((name, str(value)))


class Timeout(BaseException):
    """No test takes it for an error of the tree."""


class Limit:
    """Stops a test that takes longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.timeout = seconds, Timeout(f"it took more than {seconds:.0f} s and was stopped")
        signal.signal(signal.SIGALRM, self.late)

    def late(self, *_: object) -> None:
        self.is_late = True
        raise self.timeout

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        self.is_late = False
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return (yield)
        except Exception as error:
            # What is stopped inside of hypothesis may end with another error.
            if self.is_late:
                raise self.timeout from error
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    pytest_runtest_setup = pytest_runtest_call


class Report:
    """Writes pytest's own report of each test to a file as it comes, below a line with the versions."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.config = path.open("w", encoding="utf-8"), config
        self.write({"on": versions()})

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            line = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            self.write({key: line[key] for key in REPORTED if key in line})

    def pytest_unconfigure(self) -> None:
        self.file.close()
