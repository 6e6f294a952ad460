"""The rows of the scorecard, and which tests stand behind each.

A pattern is a test file, or FILE::TEST with * in it, where TEST may go on with the parameters in [...]. A test belongs
to the row whose pattern with :: matches it, and where there is none to the row of its file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

FOLDER = "conformance/"
THE_SUITE, THIS_REPOSITORY = "the suite itself", "this repository"


@dataclass(frozen=True)
class Row:
    name: str
    group: str
    about: str
    patterns: tuple[str, ...]
    # What in the parameters of a test names its part of the row; without it the parts are the files.
    part: str = ""


ROWS = (
    Row(
        "cache kinds",
        "caches",
        "random programs on each kind of cache, against a list of its rows",
        ("test_cache_machines.py", "test_batch_machines.py"),
        r"\[(.*)\]",
    ),
    Row(
        "C1 snapshot",
        "contracts",
        "a restored cache is what it was",
        ("test_cache_faults.py", "test_benchmarks.py", "test_contracts.py::test_holds[C1 *", "test_contracts.py"),
    ),
    Row(
        "C2 no silent no-op",
        "contracts",
        "a cache drops tokens exactly, or the error names it",
        (
            "test_contracts.py::test_holds[C2 *",
            "test_speculation_contracts.py::test_is_decoded*",
            "test_draft_models.py::test_one_draft_token_from_a_cache_that_cannot_trim",
            "test_exits.py::test_every_family_that_is_restored_is_known",
        ),
    ),
    Row(
        "C3 exits",
        "contracts",
        "however generation ends, the cache holds what was yielded",
        (
            "test_exits.py",
            "test_draft_models.py",
            "test_speculation_contracts.py::test_holds[C3 *",
            "test_parity.py::test_cache_after_the_consumer_stops*",
            "test_parity.py::test_eos_inside_an_accepted_draft",
        ),
    ),
    Row(
        "C4 parity",
        "contracts",
        "the tokens and log probabilities of plain decoding",
        (
            "test_parity.py",
            "test_strategies.py",
            "test_examples.py",
            "test_speculation_contracts.py",
            "test_contracts.py::test_holds[C4 *",
        ),
    ),
    Row(
        "C5 processors",
        "contracts",
        "logits processors see what plain decoding shows them",
        ("test_processors.py", "test_speculation_contracts.py::test_holds[C5 *"),
    ),
    Row(
        "C6 nothing hidden",
        "contracts",
        "the response says why nothing is drafted; contradictions are errors",
        (
            "test_command_line.py::test_contradictions_are_errors_before_a_model_is_loaded*",
            "test_server.py::test_wrong_fields_are_named",
            "test_server.py::test_the_line_in_the_log*",
        ),
    ),
    Row(
        "C7 no regret",
        "contracts",
        "drafting that does not pay becomes shorter; nothing is measured",
        (
            "test_drafters.py",
            "test_drafter_benchmarks.py",
            "test_edits.py",
            "test_no_regret.py",
            "test_simulated_batches.py",
        ),
    ),
    Row("C8 one forward a cycle", "contracts", "a rejected draft costs no second forward pass", ("test_counts.py",)),
    Row(
        "C9 ranks agree",
        "contracts",
        "all ranks draft and accept alike",
        ("test_ranks.py", "test_ranks_served.py"),
    ),
    Row(
        "C10 rows are alone",
        "contracts",
        "each row of a batch is what it is alone",
        ("test_batch_drafts.py", "test_batch_draft_faults.py", "test_batch_memory.py"),
    ),
    Row(
        "architectures",
        "architectures",
        "each model file runs, drafts, rejects and goes on",
        ("test_architectures.py", "test_surface.py::test_a_prompt_and_single_steps_give_finite_logits*"),
        r"\[(.*?)(?:-short|-past the window)?\]",
    ),
    Row(
        "commands",
        "entry points",
        "every option arrives where it acts",
        ("test_command_line.py", "test_package_docs.py", "test_forwarding.py"),
    ),
    Row("chat", "entry points", "mlx_lm.chat in a terminal", ("test_chat.py",)),
    Row(
        "server",
        "entry points",
        "mlx_lm.server, with others and with any body",
        (
            "test_server.py",
            "test_server_batches.py",
            "test_server_clients.py",
            "test_server_fuzz.py",
            "test_server_stops.py",
        ),
    ),
    Row("upstream's tests", "upstream", "they pass as on the stock release", ("test_upstream.py",)),
    Row("surface", "upstream", "the suite knows all that the release has", ("test_surface.py",)),
    Row(
        "planted faults",
        THE_SUITE,
        "each check fails where it has to",
        (
            "*::test_*_found",
            "*::test_*_found[*",
            "test_draft_models.py::test_the_contracts_of_speculation_find_it*",
            "test_strategies.py::test_parity_is_lost_without_a_margin",
            "test_server_fuzz.py::test_the_check_*",
            "test_ranks.py::test_a_deadlock_is_a_failure",
        ),
    ),
    Row("verdicts", THE_SUITE, "near ties and faults are told apart", ("test_verdicts.py", "test_check.py")),
    Row(
        "tools",
        THE_SUITE,
        "what the tests and the benchmark use",
        (
            "test_serving.py",
            "test_bench.py",
            "test_judging.py",
            "test_judging_parts.py",
            "test_mutation.py",
            "test_report.py",
        ),
    ),
    Row(
        "series and scripts",
        THIS_REPOSITORY,
        "the patches, the scripts and the documents",
        (
            "test_expectations.py",
            "test_port.py",
            "test_review.py",
            "test_scorecard.py",
            "test_scripts.py",
            "test_series.py",
            "test_source.py",
            "test_upstream_faults.py",
            "expectations/*",
        ),
    ),
)


def matches(pattern: str, test: str) -> bool:
    # A bracket is a bracket here.
    return fnmatchcase(test.replace("[", "("), pattern.replace("[", "("))


def find(test: str, rows: Sequence[Row] = ROWS) -> Row:
    """The one row of a test.

    Raises:
        LookupError: if it falls in no row, or in several.
    """
    test = test.removeprefix(FOLDER)
    found = [row for row in rows if any("::" in pattern and matches(pattern, test) for pattern in row.patterns)]
    found = found or [
        row for row in rows if any("::" not in one and matches(one, test.split("::")[0]) for one in row.patterns)
    ]
    if len(found) == 1:
        return found[0]
    names = " and ".join(row.name for row in found)
    raise LookupError(
        f"{test} falls in {f'the rows {names}' if found else 'no row'}: "
        "give it one row in conformance/scorecard/rows.py."
    )


def part(row: Row, test: str) -> str:
    """What of its row a test is about."""
    found = re.search(row.part + "$", test, re.DOTALL) if row.part else None
    return found[1] if found else test.removeprefix(FOLDER).split("::")[0].removeprefix("test_").removesuffix(".py")
