"""pytest's options --adapter, --report and --limit, and the parameters of the tests that a judgement runs.

A test with the arguments ``family`` and ``adapter`` is run for each kind of model, and one with ``command`` and
``adapter`` for each command.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Generator, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from conformance.adapters import Adapters, Unusable, find, load
from conformance.device import device
from conformance.judging import results
from conformance.subjects.decoded import FAMILIES, Family

COMMANDS = ("generate", "chat", "server")
WORDS = (results.REFUSED, results.ABSENT, results.NOT_SHOWN)
# Errors of a process or a server that took too long.
LATE = re.compile(r"[\w.]*Time(d?out|outExpired|outError)\b")


class Plugin:
    def __init__(self, names: list[str] | None) -> None:
        try:
            self.adapters = Adapters([load(name) for name in names]) if names else find()
        except Unusable as error:
            raise pytest.UsageError(str(error)) from error
        self.families = FAMILIES

    def pytest_report_header(self) -> str:
        return f"through the adapters {self.adapters.name}"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "family" in metafunc.fixturenames and "adapter" in metafunc.fixturenames:
            # A file names the families that its tests cannot ask.
            without = getattr(metafunc.module, "WITHOUT", ())
            chosen = [family for family in self.families if family.name not in without]
            metafunc.parametrize("family", chosen, ids=[family.name for family in chosen])
        if "command" in metafunc.fixturenames and "adapter" in metafunc.fixturenames:
            metafunc.parametrize("command", dict.fromkeys([*COMMANDS, *self.adapters.commands]))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what the report says of a test with a mark."""
        for item in items:
            if (contract := item.get_closest_marker("contract")) is not None:
                item.user_properties.append(("contract", contract.args[0]))
            if (asked := item.get_closest_marker("asked")) is not None:
                # A file that cannot be imported has the mark alone.
                item.user_properties.append(("asked", asked.args[0] if asked.args else "?"))
                item.user_properties.append(("promised", asked.kwargs.get("promised", True)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """The series refuses nothing, and a test of it that could not have failed is a failure.

        What a failed test says of each of its cases is kept in the process that runs it.
        """
        report = yield
        error = call.excinfo.value if call.excinfo else None
        said = str(error.msg) if isinstance(error, pytest.skip.Exception) else ""
        if self.adapters.is_series and said.startswith(("not shown", "refused")):
            report.outcome, report.longrepr = "failed", said
        if cases := getattr(error, "cases", None):
            report.user_properties.append(("cases", cases))
        return report

    @pytest.fixture
    def about(self, record_property: Callable[[str, object], None]) -> Callable[..., None]:
        """Note what a test is about and what that rests on: a test follows from a failed one of what it rests on."""

        def note(subject: str | Family, *uses: str | Iterable[str]) -> None:
            if isinstance(subject, Family):
                uses = (*uses, *subject.rests_on())
            record_property("about", getattr(subject, "name", subject))
            record_property("uses", ", ".join(map(str, uses)))

        return note


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


class Reports:
    """Writes what became of each test to a file, a line of JSON each, as it comes to be known."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", encoding="utf-8")

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Several processes do not run the tests in their order."""
        self.write(collected=ids)

    def pytest_sessionstart(self) -> None:
        self.write(on=f"mlx-lm {mlx_lm.__version__}, mlx {version('mlx')}, {device()}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        notes = dict(report.user_properties)
        asked = {name: notes.pop(name) for name in ("asked", "promised") if name in notes}
        outcome, said, lines = told(report)
        expected = getattr(report, "wasxfail", "")
        self.write(test=report.nodeid, outcome=outcome, said=said, lines=lines, expected=expected, **asked, notes=notes)

    def pytest_unconfigure(self) -> None:
        self.file.close()


def told(report: Any) -> tuple[str, str, str]:
    """The word for an outcome, what the test says in one line, and the lines behind it."""
    if report.passed:
        return results.HOLDS, "", ""
    expected = getattr(report, "wasxfail", None)
    if isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        word = next((word for word in WORDS if reason.startswith(f"{word}: ")), "")
        return (word, reason.partition(": ")[2], "") if word else (results.SKIPPED, reason, "")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", report.longrepr)).strip()
    if "[XPASS(strict)]" in text:
        return results.HOLDS, text, ""
    # What pytest.fail says is a sentence and lines; of anything else the first line counts.
    said, _, lines = text.removeprefix("Failed: ").partition("\n\n")
    word = results.REFUSED if (expected or "").startswith("Refused") else results.BROKEN
    word = results.NOT_FINISHED if LATE.match(text) else word
    return word, said.partition("\n")[0].removeprefix("AssertionError: "), lines if text.startswith("Failed: ") else ""
