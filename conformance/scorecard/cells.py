"""A cell has the results of the tests of a row, or of a part of it, in one run. A run has a state and a verdict.

A file of one run (``pytest --scorecard=FILE``) names every test. ``kept`` makes a file of several runs,
``{"runs": [...]}``, without the names of the tests that passed. ``load`` reads both.
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


@dataclass
class Cell:
    passed: int = 0
    examples: int = 0
    tokens: int = 0
    # The tests that did not pass, by outcome and reason.
    why: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, test: str, result: dict[str, Any]) -> None:
        self.examples += result.get("examples", 0)
        self.tokens += result.get("tokens", 0)
        if result["outcome"] == PASSED:
            self.passed += 1
        else:
            self.why.setdefault((result["outcome"], result.get("reason", "")), []).append(test)

    @property
    def counts(self) -> Counter[str]:
        found = Counter({PASSED: self.passed} if self.passed else {})
        for (outcome, _), tests in self.why.items():
            found[outcome] += len(tests)
        return found

    @property
    def tests(self) -> int:
        return sum(self.counts.values())

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
        counts = self.counts
        others = [f"{counts[outcome]:,} {word}" for outcome, word in SAID.items() if counts[outcome]]
        if not others:
            return f"{self.passed:,}" if self.run else NOT_RUN
        return ", ".join([f"{self.passed:,} of {self.tests:,}", *others])


def joined(cells: Iterable[Cell]) -> Cell:
    total = Cell()
    for cell in cells:
        total.passed += cell.passed
        total.examples += cell.examples
        total.tokens += cell.tokens
        for key, tests in cell.why.items():
            total.why[key] = total.why.get(key, []) + tests
    return total


# The parts of each row.
Rows = dict[str, dict[str, Cell]]


@dataclass
class SuiteRun:
    about: dict[str, str]
    rows: Rows

    @property
    def name(self) -> str:
        return f"{self.about['release']} {self.about['flavour']}"

    def cell(self, row: str) -> Cell:
        return joined(self.rows.get(row, {}).values())

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
        if state != CONFORMANT:
            return state
        return NOT_RUN if self.empty else CONFORMANT

    @property
    def empty(self) -> list[str]:
        """The rows without a test. The suite, the scripts and the patches are tested with the default release only."""
        asked = [row.name for row in ROWS if row.group not in (THE_SUITE, THIS_REPOSITORY)]
        return [name for name in asked if not self.cell(name).run]

    @property
    def kinds(self) -> Counter[str]:
        """The expected failures, counted by kind: no such API, wrong, refused."""
        found = Counter[str]()
        for word in KINDS.values():
            found[word] = 0
        for (outcome, reason), tests in self.total.why.items():
            if outcome == EXPECTED and kind(reason):
                found[kind(reason)] += len(tests)
        return +found

    @property
    def verdict(self) -> str:
        if self.state == CONFORMANT:
            return CONFORMANT
        counts = self.total.counts
        said = [f"{counts[outcome]:,} {word}" for outcome, word in SAID.items() if counts[outcome]]
        if kinds := self.kinds:
            told = ", ".join(f"{n:,} {word}" for word, n in kinds.items())
            said = [f"{one} ({told})" if one.endswith(SAID[EXPECTED]) else one for one in said]
        if self.empty:
            said.append(f"no test of {self.empty[0] if len(self.empty) == 1 else f'{len(self.empty)} rows'}")
        return ", ".join(said)


def read(run: dict[str, Any], where: Path) -> SuiteRun:
    """Read a run.

    Raises:
        ValueError: if the run is only a part of the suite, or has rows that no longer exist.
    """
    if not run["whole"]:
        raise ValueError(f"{where} is of a run with paths, a part of the suite: leave them out.")
    unknown = sorted(set(run["rows"]) - {row.name for row in ROWS})
    if unknown:
        raise ValueError(f"{where} has the rows {', '.join(unknown)}, which are gone: run the suite again.")
    rows: Rows = {}
    for name, tests in run["rows"].items():
        cells = rows.setdefault(name, {})
        if "kept" in run:
            for part, cell in tests.items():
                why = {(outcome, reason): list(ids) for outcome, reason, ids in cell["why"]}
                cells[part] = Cell(cell["passed"], cell["examples"], cell["tokens"], why)
        else:
            for test, result in tests.items():
                cells.setdefault(result["part"], Cell()).add(test, result)
    return SuiteRun({name: run[name] for name in ABOUT}, rows)


def updated(rows: Rows, newer: Rows) -> Rows:
    """The newer rows, and the parts of the older rows that only the older run has."""

    def ran(parts: dict[str, Cell]) -> dict[str, Cell]:
        return {part: cell for part, cell in parts.items() if cell.run}

    return {row: newer.get(row, {}) | ran(rows.get(row, {})) | ran(newer.get(row, {})) for row in {**rows, **newer}}


def load(paths: Sequence[Path]) -> list[SuiteRun]:
    """The runs of these files. A later run replaces one of the same release, flavour, mlx and device.

    If both have the same series, the parts that the later one left out are kept: two environments make one run.
    """
    found: dict[tuple[str, ...], SuiteRun] = {}
    for path in paths:
        held = json.loads(path.read_text("utf-8"))
        for one in held.get("runs", [held]):
            run = read(one, path)
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


def kept(runs: Sequence[SuiteRun]) -> str:
    """The text of a file of several runs."""

    def cell(one: Cell) -> dict[str, Any]:
        why = [[outcome, reason, tests] for (outcome, reason), tests in one.why.items()]
        return {"passed": one.passed, "examples": one.examples, "tokens": one.tokens, "why": why}

    def shown(run: SuiteRun) -> dict[str, Any]:
        rows = {name: {part: cell(one) for part, one in parts.items()} for name, parts in run.rows.items()}
        return run.about | {"kept": True, "whole": True, "rows": rows}

    # One line for each row of a run, so that a diff is readable.
    lines = []
    for run in map(shown, runs):
        head = json.dumps({name: value for name, value in run.items() if name != "rows"}, ensure_ascii=False)
        rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(v, ensure_ascii=False)}" for n, v in run["rows"].items())
        lines.append(f'{head[:-1]}, "rows": {{\n{rows}\n}}}}')
    return '{"runs": [\n' + ",\n".join(lines) + "\n]}\n"
