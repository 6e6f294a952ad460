"""Options, the report header, and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm import load

from conformance import FIXTURE
from conformance.adapters import Adapters
from conformance.expectations.plugin import Plugin, nearest
from conformance.judging import plugin as judging
from conformance.oracle.profiles import seed
from conformance.series.patches import commits, unpack
from conformance.stages import plugin as stages


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--adapter", action="append", metavar="NAME|FILE", help="an adapter; default: all that fit")
    parser.addoption("--report", type=Path, metavar="FILE", help="write what became of each test, a line of JSON each")
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
    if (stage := config.getoption("--stage")) is not None:
        lines = stages.read(stages.FILE.read_text())
        config.pluginmanager.register(stages.Plugin(stage, lines, stages.order()), "stages")
    # What the last stage is expected to fail may not be there yet.
    strict = stage is None and expected.stem == f"{release}-{flavour}"
    config.pluginmanager.register(Plugin(expected, strict), "expectations")
    config.pluginmanager.register(judging.Plugin(config.getoption("--adapter")), "judging")
    if (limit := config.getoption("--limit")) is not None:
        config.pluginmanager.register(judging.Limit(limit), "limit")
    if (report := config.getoption("--report")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(judging.Reports(report), "told")


# The tests of the suite itself do not depend on the release, so one run of them is enough.
SELFTEST = ("conformance/judging/", "conformance/check/", "conformance/lab/")
# These tests wait for other processes. Those that wait longest come first.
WAITING = ["server/test_stops.py", "upstream/", "repository/test_upstream_faults.py"]
WAITING += ["server/", "contracts/c9_", "commands/", "chat/"]


@pytest.hookimpl(tryfirst=True)  # before -m removes tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the suite itself as ``selftest``."""

    def place(item: pytest.Item) -> int:
        path = item.nodeid.removeprefix("conformance/")
        return next((i for i, start in enumerate(WAITING) if path.startswith(start)), len(WAITING))

    # One of several workers begins with what waits, so that the others have the cores.
    items.sort(key=place)
    for item in items:
        if item.get_closest_marker("planted") or item.nodeid.startswith(SELFTEST):
            item.add_marker("selftest")


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections: a server collects for each model it loads, and as it ends."""
    gc.freeze()


def pytest_report_header() -> str:
    versions = f"mlx-lm {mlx_lm.__version__} at {mlx_lm.__file__}, mlx {version('mlx')}"
    return f"{versions} on {mx.default_device()}, programs of CONFORMANCE_SEED={seed()}"


def again(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The command that runs only this test, also in a clone where nothing was made yet."""
    # A file that cannot be imported has no marks.
    marks = getattr(report, "keywords", {})
    name = os.environ.get("TOX_ENV_NAME", "patched")
    if {"series", "repository", "selftest"} & {*marks}:
        # The others leave them out.
        name = "selftest"
    variables = os.environ.keys() & {"CONFORMANCE_SEED", "STAGE", "TREE", "PORT_CHECKOUT"}
    told = [f"{variable}={shlex.quote(os.environ[variable])}" for variable in sorted(variables)]
    chosen = ["-m", "series"] if "series" in marks else []
    return " ".join([*told, "scripts/tox.sh", "-e", name, "--", *chosen, shlex.quote(report.nodeid)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Below the failures, how to run only these."""
    failed = terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", [])
    if failed and not terminalreporter.config.getoption("no_summary"):
        terminalreporter.section("to run only one of them")
        terminalreporter.write("".join(f"{command}\n" for command in dict.fromkeys(map(again, failed))))


@pytest.fixture(scope="session")
def adapter(pytestconfig: pytest.Config) -> Adapters:
    """What the features of the installed mlx-lm are called through."""
    plugin: Any = pytestconfig.pluginmanager.get_plugin("judging")
    adapters: Adapters = plugin.adapters
    return adapters


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a package beside mlx_lm: the release without the series."""
    folder, name = tmp_path_factory.mktemp("released"), "mlx_lm_as_released"
    package = (unpack(commits()[0], folder) / "mlx_lm").rename(folder / name)
    for path in package.rglob("*.py"):
        # A few import with the name of the package.
        path.write_text(path.read_text("utf-8").replace("from mlx_lm.", f"from {name}."), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield name


@pytest.fixture(scope="session")
def fixture() -> tuple[Any, Any]:
    """The model of this repository and its tokenizer."""
    model, tokenizer = load(str(FIXTURE))
    return model, tokenizer


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn no costs: how long passes take here would decide what is drafted."""
    from mlx_lm.draft import LearnedCosts

    monkeypatch.setattr(LearnedCosts, "learn", lambda *_: None)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Turn off compiled functions: the first use of each starts a C++ compiler for two seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()
