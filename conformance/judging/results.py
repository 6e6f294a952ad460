"""What pytest's JUnit file says of a tree. It needs no mlx, and no pytest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HOLDS, BROKEN, REFUSED, ABSENT = "holds", "broken", "refused", "not offered"
# Neither green nor red: no draft came up, so the test could not have failed.
NOT_SHOWN = "not shown"
# The files of tests that are asked, by part, and the paths of mlx_lm whose changes they are about.
PARTS = {
    "caches": ("contracts/c1_snapshot", r"models/(cache|base)\.py"),
    "decoding": ("contracts/c4_parity", r"(generate|sample_utils)\.py|draft/|models/(cache|base|\w+)\.py"),
    "batch": ("contracts/c10_rows_are_alone", r"(generate|sample_utils)\.py|models/(cache|base)\.py"),
    "models": ("architectures", r"models/(?!cache)\w+\.py"),
    "commands": ("commands", r"(generate|chat|server|cli)\.py|draft/"),
    "server": ("server", r"(server|generate|sample_utils|tokenizer_utils)\.py|models/cache\.py|draft/"),
}
TEST = "test_through_adapter"
# What each function of these files asks, and whether upstream promises it; each may follow from those before it.
ASKED = {
    "c1_snapshot.test_blocks": ("C4 blocks", True),
    "c1_snapshot.test_trim": ("C2 trim", True),
    "c1_snapshot.test_snapshot": ("C1 snapshot", True),
    "c1_snapshot.test_rows_of_a_recurrent_cache": ("C1 snapshot", True),
    "c1_snapshot.test_filter": ("C10 rows of a cache", True),
    "architectures.test_plain": ("plain decoding", True),
    "c4_parity.test_plain": ("plain decoding", True),
    "c1_snapshot.test_model_trim": ("C2 trim", True),
    "c1_snapshot.test_model_snapshot": ("C1 snapshot", True),
    "c10_rows_are_alone.test_rows": ("C10 rows", True),
    "c10_rows_are_alone.test_a_row_that_joins": ("C10 rows", True),
    "c10_rows_are_alone.test_processors_of_one_row": ("C5 processors of a row", True),
    "c4_parity.test_parity": ("C4 parity", True),
    "c4_parity.test_seeds": ("C4 seeds", False),
    "c4_parity.test_processors": ("C5 processors", True),
    "c4_parity.test_exits": ("C3 exits", False),
    "commands.test_options": ("C6 options", True),
    "commands.test_request": ("C6 requests", True),
    "server.test_one_prompt_twice": ("C3 server prefixes", True),
    "server.test_prefixes": ("C3 server prefixes", True),
    "server.test_seeds": ("C4 server seeds", True),
    "server.test_a_penalty_on_a_cached_prompt": ("C5 server processors", True),
    "server.test_clients_at_once": ("C10 server clients", True),
    "server.test_clients_of_a_recurrent_model": ("C10 server clients", True),
}


@dataclass
class Result:
    outcome: str
    said: str = ""
    lines: str = ""
    # What pytest's record_property noted.
    notes: dict[str, str] = field(default_factory=dict)
    # Whether it holds alone, and is not what it is on the base.
    differs: bool = False

    @property
    def uses(self) -> set[str]:
        return {self.notes.get("about", ""), *self.notes.get("uses", "").split(", ")} - {""}


Results = dict[str, Result]


def file_of(part: str) -> str:
    return f"conformance/{PARTS[part][0]}/{TEST}.py"


def part_of(test: str) -> str:
    return next(part for part in PARTS if test.startswith(file_of(part)))


def function(test: str) -> str:
    """The key of a test in ``ASKED``."""
    found = re.search(r"(\w+)/\w+\.py::(\w+)", test)
    return f"{found[1]}.{found[2]}" if found else test


def read(file: Path) -> Results:
    """The result of each test, by its id."""
    found: Results = {}
    for case in ElementTree.parse(file).iter("testcase"):
        name, path = case.attrib["name"], case.attrib["classname"].replace(".", "/")
        # A file that cannot be imported has no class.
        test = f"{path}.py::{name}" if path else f"{name}::import"
        notes = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        # A test that failed may fail at its end too.
        found.setdefault(test, _result(case, notes))
    return found


def _result(case: ElementTree.Element, notes: dict[str, str]) -> Result:
    for kind in ("failure", "error"):
        one = case.find(kind)
        # What a release is expected to fail, and this tree does not, holds.
        if one is not None and not (one.text or "").startswith("[XPASS"):
            said, _, lines = (one.text or "").strip().partition("\n\n")
            if (trace := re.search(r"^E +(.*)", one.text or "", re.MULTILINE)) is not None:
                said, lines = trace[1], ""
            return Result(BROKEN, said.partition("\n")[0], lines, notes)
    if (one := case.find("skipped")) is None:
        return Result(HOLDS, notes=notes)
    said = one.attrib.get("message", "")
    if one.attrib.get("type") == "pytest.xfail":
        # The reason of an expectation says what is wrong with the release.
        return Result(REFUSED if said.startswith("Refused") else BROKEN, said, notes=notes)
    outcome = next((word for word in (REFUSED, NOT_SHOWN) if said.startswith(word)), ABSENT)
    return Result(outcome, said.partition(": ")[2], notes=notes)
