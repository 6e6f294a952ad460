"""The rows of the scorecard. A row has a folder; marks put tests of other folders into it.

``@pytest.mark.contract("C3")`` puts a test into the row of that contract, ``@pytest.mark.planted`` into the
row of the planted faults. Every other test belongs to the row of its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HERE = "conformance/"
THE_SUITE, THIS_REPOSITORY = "the suite itself", "this repository"


@dataclass(frozen=True)
class Row:
    # A mark names the first word.
    name: str
    folder: str
    group: str
    about: str


ROWS = (
    Row(
        "cache kinds",
        "caches",
        "caches",
        "random programs on each kind of cache, against a list of its rows",
    ),
    Row("C1 snapshot", "contracts/c1_snapshot", "contracts", "a restored cache is what it was"),
    Row(
        "C2 no silent no-op",
        "contracts/c2_no_silent_no_op",
        "contracts",
        "a cache drops tokens exactly, or the error names it",
    ),
    Row("C3 exits", "contracts/c3_exits", "contracts", "however generation ends, the cache holds what was yielded"),
    Row("C4 parity", "contracts/c4_parity", "contracts", "the tokens and log probabilities of plain decoding"),
    Row(
        "C5 processors",
        "contracts/c5_processors",
        "contracts",
        "logits processors see what plain decoding shows them",
    ),
    Row(
        "C6 nothing hidden",
        "contracts/c6_nothing_hidden",
        "contracts",
        "the response says why nothing is drafted; contradictions are errors",
    ),
    Row(
        "C7 no regret",
        "contracts/c7_no_regret",
        "contracts",
        "drafting that does not pay becomes shorter; nothing is measured",
    ),
    Row(
        "C8 one forward a cycle",
        "contracts/c8_one_forward",
        "contracts",
        "a rejected draft costs no second forward pass",
    ),
    Row("C9 ranks agree", "contracts/c9_ranks_agree", "contracts", "all ranks draft and accept alike"),
    Row(
        "C10 rows are alone",
        "contracts/c10_rows_are_alone",
        "contracts",
        "each row of a batch is what it is alone",
    ),
    Row(
        "architectures",
        "architectures",
        "architectures",
        "each model file runs, drafts, rejects and goes on",
    ),
    Row("commands", "commands", "entry points", "every option arrives where it acts"),
    Row("chat", "chat", "entry points", "mlx_lm.chat in a terminal"),
    Row("server", "server", "entry points", "mlx_lm.server, with others and with any body"),
    Row("real model", "real_model", "entry points", "SmolLM2 with real text: scripts/check.sh --model smollm2"),
    Row("upstream's tests", "upstream/own_tests", "upstream", "they pass as on the stock release"),
    Row("surface", "upstream/surface", "upstream", "the suite knows all that the release has"),
    Row("planted faults", "", THE_SUITE, "each check fails where it has to"),
    Row("verdicts", "meta/verdicts", THE_SUITE, "near ties and faults are told apart"),
    Row("tools", "meta/tools", THE_SUITE, "what the tests and the benchmark use"),
    Row("series and scripts", "meta/repository", THIS_REPOSITORY, "the patches, the scripts and the documents"),
)
# If an expectation names no test, its line in this folder fails as a test.
ELSEWHERE = {"expectations": "meta/repository"}


def find(test: str, mark: str = "", rows: Sequence[Row] = ROWS) -> Row:
    """The row of a test: the row that its mark names, or else that of its folder.

    Raises:
        LookupError: if there is no such row, or more than one.
    """
    path = test.split("::")[0].removeprefix(HERE)
    first, _, _ = path.partition("/")
    path = ELSEWHERE.get(first, path)
    if mark:
        found = [row for row in rows if row.name.split()[0] == mark]
    else:
        found = [row for row in rows if row.folder and f"{path}/".startswith(f"{row.folder}/")]
    if len(found) == 1:
        return found[0]
    names = " and ".join(row.name for row in found)
    raise LookupError(
        f"{test} falls in {f'the rows {names}' if found else 'no row'}: its folder or a mark has to be that of one row "
        "of conformance/scorecard/rows.py."
    )
