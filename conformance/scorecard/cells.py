"""A cell has the results of the tests of a row in one run. A run has a state and a verdict.

``pytest --scorecard=FILE`` writes a file for a run, and ``load`` reads such files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.expectations.files import KINDS, kind
from conformance.scorecard.rows import ROWS, THE_SUITE, THIS_REPOSITORY

PASSED, FAILED, EXPECTED, SKIPPED, LEFT_OUT = "passed", "failed", "expected", "skipped", "left out"
CONFORMANT, NOT_RUN = "conformant", "not run"
# The outcomes that make a run not conformant, the worst first, in the words of a count.
SAID = {FAILED: "failed", EXPECTED: "expected to fail", SKIPPED: "skipped", LEFT_OUT: "left out"}
ABOUT = ("release", "flavour", "mlx-lm", "mlx", "device", "python")
# The outcome of each test by its id, with its reason and the examples and tokens that it checked.
Results = dict[str, dict[str, Any]]


@dataclass
class Cell:
    results: Results = field(default_factory=dict)

    def total(self, name: str) -> int:
        """The sum of the examples or of the tokens."""
        return sum(result.get(name, 0) for result in self.results.values())

    @property
    def counts(self) -> Counter[str]:
        return Counter(result["outcome"] for result in self.results.values())

    @property
    def why(self) -> dict[tuple[str, str], list[str]]:
        """The tests that did not pass, by outcome and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for test, result in self.results.items():
            if result["outcome"] != PASSED:
                found.setdefault((result["outcome"], result.get("reason", "")), []).append(test)
        return found

    @property
    def passed(self) -> int:
        return self.counts[PASSED]

    @property
    def tests(self) -> int:
        return len(self.results)

    @property
    def run(self) -> int:
        """The tests that were not left out."""
        return self.tests - self.counts[LEFT_OUT]

    @property
    def state(self) -> str:
        """The worst outcome. It is conformant only if there are tests and all of them passed."""
        if not self.run:
            return NOT_RUN
        return next((outcome for outcome in SAID if self.counts[outcome]), CONFORMANT)

    @property
    def said(self) -> str:
        """The counts of its tests by outcome, in words."""
        others = [f"{self.counts[outcome]:,} {word}" for outcome, word in SAID.items() if self.counts[outcome]]
        if not others:
            return f"{self.passed:,}" if self.run else NOT_RUN
        return ", ".join([f"{self.passed:,} of {self.tests:,}", *others])


def joined(cells: Iterable[Cell]) -> Cell:
    return Cell({test: result for cell in cells for test, result in cell.results.items()})


@dataclass
class SuiteRun:
    about: dict[str, str]
    rows: dict[str, Results]

    @property
    def name(self) -> str:
        return f"{self.about['release']} {self.about['flavour']}"

    def cell(self, row: str) -> Cell:
        return Cell(self.rows.get(row, {}))

    @property
    def cells(self) -> dict[str, Cell]:
        return {row.name: self.cell(row.name) for row in ROWS}

    @property
    def total(self) -> Cell:
        return joined(self.cells.values())

    @property
    def state(self) -> str:
        """The state of the whole run. It is conformant only if every row has tests and all of them passed."""
        state = self.total.state
        return NOT_RUN if state == CONFORMANT and self.empty else state

    @property
    def empty(self) -> list[str]:
        """The rows without a test. The suite, the scripts and the patches are tested with the default release only."""
        asked = [row.name for row in ROWS if row.group not in (THE_SUITE, THIS_REPOSITORY)]
        return [name for name in asked if not self.cell(name).run]

    @property
    def verdict(self) -> str:
        if self.state == CONFORMANT:
            return CONFORMANT
        total = self.total
        said = [f"{total.counts[outcome]:,} {word}" for outcome, word in SAID.items() if total.counts[outcome]]
        # The expected failures by kind: no such API, wrong, refused.
        kinds = Counter(
            kind(reason) for (outcome, reason), tests in total.why.items() if outcome == EXPECTED for _ in tests
        )
        if told := [f"{kinds[word]:,} {word}" for word in dict.fromkeys(KINDS.values()) if kinds[word]]:
            said = [f"{one} ({', '.join(told)})" if one.endswith(SAID[EXPECTED]) else one for one in said]
        if self.empty:
            said.append(f"no test of {self.empty[0] if len(self.empty) == 1 else f'{len(self.empty)} rows'}")
        return ", ".join(said)


def read(path: Path) -> SuiteRun:
    """Read a run.

    Raises:
        ValueError: if the run is only a part of the suite, or has rows that no longer exist.
    """
    run = json.loads(path.read_text("utf-8"))
    if not run["whole"]:
        raise ValueError(f"{path} is of a run with paths, a part of the suite: leave them out.")
    unknown = sorted(set(run["rows"]) - {row.name for row in ROWS})
    if unknown:
        raise ValueError(f"{path} has the rows {', '.join(unknown)}, which are gone: run the suite again.")
    return SuiteRun({name: run[name] for name in ABOUT}, run["rows"])


def updated(rows: dict[str, Results], newer: dict[str, Results]) -> dict[str, Results]:
    """The newer rows, and the tests of the older rows that only the older run ran."""

    def ran(results: Results) -> Results:
        return {test: result for test, result in results.items() if result["outcome"] != LEFT_OUT}

    return {row: newer.get(row, {}) | ran(rows.get(row, {})) | ran(newer.get(row, {})) for row in {**rows, **newer}}


def load(paths: Sequence[Path]) -> list[SuiteRun]:
    """The runs of these files. A later run replaces one of the same release, flavour, mlx and device.

    If both have the same series, the tests that the later one left out are kept: two environments make one run.
    """
    found: dict[tuple[str, ...], SuiteRun] = {}
    for path in paths:
        run = read(path)
        key = tuple(run.about[name] for name in ("release", "flavour", "mlx", "device"))
        if key in found and found[key].about == run.about:
            run.rows = updated(found[key].rows, run.rows)
        found[key] = run
    return sorted(found.values(), key=order)


def order(run: SuiteRun) -> tuple[Any, ...]:
    """The sort key of a run: the newest release first, and with the series before without it."""

    def numbers(version: str) -> list[int]:
        return [-int(part) if part.isdigit() else 0 for part in version.split(".")]

    about = run.about
    return numbers(about["release"]), about["flavour"], numbers(about["mlx"]), about["device"]


def names(runs: Sequence[SuiteRun]) -> list[str]:
    """A name for each run: release and flavour, and also mlx and device if two runs would have the same name."""
    found = [run.name for run in runs]
    for more in ([f"mlx {run.about['mlx']}" for run in runs], [run.about["device"] for run in runs]):
        found = [f"{n}, {m}" if found.count(n) > 1 else n for n, m in zip(found, more, strict=True)]
    return found
