"""A judgement finds each planted fault, by the test that has to see it: a sample, or all with CONFORMANCE_PROFILE=full.

Each tree has one fault. The test passes on the tree without it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from conformance.judging.difference import BROKE, kind_of
from conformance.judging.plants import INTERFACES, TREES, Plant, plant, published
from conformance.judging.results import BROKEN, HOLDS, Results, read
from conformance.judging.run import Run
from conformance.series.patches import commits, unpack

FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
SAMPLE = [("backend", "history fed twice"), ("other names", "a short history")]
# A tree that calls what the series has by other names, so that only its own adapter can ask it.
ADAPTER = """
import mlx.core as mx
from conformance.drafters import Scripted
from mlx_lm.generate import guessing_steps
from mlx_lm.models.cache import shorten_caches as trim
from mlx_lm.models.cache import mark_caches as snapshot
from mlx_lm.models.cache import may_drop as can_trim
from mlx_lm.models.cache import rewind_caches as restore

OPTIONS = ("max_tokens", "sampler", "logits_processors", "prompt_cache", "kv_bits", "kv_group_size")
DRAFTERS = ("right in part",)
_GUESS = ["--guess-with", "auto", "--disable-adaptive-gate"]
COMMANDS = {"generate": _GUESS, "server": _GUESS}

def decode(model, prompt, drafts, **options):
    guesser = Scripted(drafts.right, max(drafts.right) + 1)
    how = dict(guesser=guesser, num_draft_tokens=3, disable_adaptive_gate=True)
    return guessing_steps(mx.array(prompt), model, **how, **options)
"""
# What was found in published experiments, by their interface; and a tree that only its own adapter can ask.
FOUND = {
    "backend": ["history fed twice"],
    "draft_type": ["a window out of place", "a flag that is dropped"],
    "prompt_lookup": ["padding of a recurrent cache lost", "a token short at an exit"],
    "other names": [fault.name for fault in TREES["series"]],
}


def asked(tree: Path, folder: Path, tests: list[str], *adapters: str) -> Results:
    # The tests are named, so it does not matter which part they are of.
    return Run(Path(sys.executable), folder, tree / "mlx_lm", adapters, {"PYTHONPATH": str(tree)}).ask(
        ["it"], select=tests
    )


@pytest.fixture
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of a tree without a fault. All processes of the tests share one run."""
    flavour: str = request.getfixturevalue("flavour")
    shared = tmp_path_factory.getbasetemp().parent / f"judged-{flavour}"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "it.jsonl").exists():
            tree = plant(unpack(commits()[0 if flavour == "stock" else -1], shared / "source"), shared / "tree")
            asked(tree, shared, sorted({fault.nodeid for fault in chosen(flavour)}))
    return read(shared / "it.jsonl")[1]


def chosen(flavour: str) -> list[Plant]:
    return [fault for fault in TREES[flavour] if FULL or fault.sample]


@pytest.mark.planted
@pytest.mark.parametrize(
    ("flavour", "fault"),
    [pytest.param(flavour, fault, id=f"{flavour}-{fault.name}") for flavour in TREES for fault in chosen(flavour)],
)
def test_a_planted_fault_is_found(flavour: str, fault: Plant, right: Results, tmp_path: Path) -> None:
    source = unpack(commits()[0 if flavour == "stock" else -1], tmp_path / "source")
    found = asked(plant(source, tmp_path / "tree", fault), tmp_path, [fault.nodeid])
    assert right[fault.nodeid].outcome == HOLDS
    assert kind_of(right[fault.nodeid], found[fault.nodeid]) == BROKE


@pytest.mark.planted
@pytest.mark.parametrize(
    ("interface", "name"),
    [(one, name) for one in FOUND for name in FOUND[one] if FULL or (one, name) in SAMPLE],
)
def test_a_fault_behind_another_interface_is_found(interface: str, name: str, tmp_path: Path) -> None:
    """Through the shipped adapter that fits, or through that of the tree. Without the fault the test passes."""
    source, adapter = unpack(commits()[-1], tmp_path / "source"), tmp_path / "other_names.py"
    adapter.write_text(ADAPTER)
    drafter, _ = INTERFACES[interface]
    (fault,) = (one.asked_of(drafter) for one in TREES["series"] if one.name == name)
    for planted, outcome in ((None, HOLDS), (fault, BROKEN)):
        tree = published(source, tmp_path / f"tree {outcome}", interface, planted)
        own = [str(adapter)] if interface == "other names" else []
        (result,) = asked(tree, tmp_path, [fault.nodeid], *own).values()
        assert result.outcome == outcome, result.said


def test_there_are_at_least_forty_faults() -> None:
    names = [fault.name for faults in TREES.values() for fault in faults]
    assert len(set(names)) == len(names) >= 40
