"""Mark the expected failures of each release, with and without the series.

conformance/expectations/<release>-<stock or patched>.txt has a test id on each line. The lines above it that begin with
# give the reason. An id that ends in * stands for all ids with that beginning. A reason starts with its kind:
"No such API: ", "Wrong: " (or "Upstream model fault, MODEL: "), or "Refused: " for an error that a tree is free to
raise. If an expected failure passes, that is a failure. An id that names no test is a failure too. A version without a
file uses the file of the nearest release. There a test may pass, pytest's XPASS, and an id may name no test.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    where: str
    id: str
    reason: str

    def covers(self, nodeid: str) -> bool:
        return nodeid.startswith(self.id[:-1]) if self.id.endswith("*") else nodeid == self.id


def read(path: Path) -> list[Expectation]:
    """The expectations of a file."""
    found, reason, lines = [], "", path.read_text().splitlines()
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
    """A test that always fails, with one sentence."""

    def __init__(self, *, sentence: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sentence = sentence

    def runtest(self) -> NoReturn:
        pytest.fail(self.sentence, pytrace=False)


class Unimportable(pytest.Module):
    """A test file that imports names which this mlx-lm lacks. It counts as one failing test, ``import``."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        try:
            self.obj  # noqa: B018 - imports the file
        except self.CollectError as error:
            missing = [line for line in str(error).splitlines() if "mlx_lm" in line and "Error:" in line]
            if not missing:
                raise
            problem = Problem.from_parent(self, name="import", sentence=missing[-1].lstrip("E "))
            if "mark.asked(" in self.path.read_text("utf-8"):
                problem.add_marker("asked")
            yield problem
            return
        yield from super().collect()


class Plugin:
    """Applies a file of expectations: that of the release (``strict``), or that of the nearest one."""

    def __init__(self, path: Path, strict: bool = True) -> None:
        self.expectations = read(path)
        self.name, self.strict = path.stem, strict

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module:
        module: pytest.Module = Unimportable.from_parent(parent, path=module_path)
        return module

    def pytest_report_header(self) -> str:
        borrowed = "" if self.strict else ", of the nearest release"
        return f"{self.name}: {len(self.expectations)} expectations{borrowed}"

    @pytest.hookimpl(tryfirst=True)  # before -k and -m remove tests
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        files = {item.nodeid.split("::")[0] for item in items}
        whole = self.strict and not any("::" in argument for argument in config.args)
        for one in self.expectations:
            covered = [item for item in items if one.covers(item.nodeid)]
            for item in covered:
                item.add_marker(pytest.mark.xfail(reason=one.reason, strict=self.strict))
            file = one.id.split("::")[0]
            # Of a file that is there and was not collected nothing is known.
            known = file in files or not (config.rootpath / file).exists()
            if items and known and whole and not covered:
                said = f"{one.where}: no test is {one.id}"
                items.append(Problem.from_parent(items[0].session, name=one.where, nodeid=one.where, sentence=said))
