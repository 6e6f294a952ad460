"""A judgement finds what is planted in a tree: what only its base shows, and what only an adapter can ask."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.faults import FOLDER, Fault, plant, read
from conformance.judging.difference import BROKE, differences
from conformance.judging.interfaces import INTERFACES, published
from conformance.judging.results import BROKEN, HOLDS, Results
from conformance.judging.run import Run
from conformance.series.patches import commits, unpack

FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
DECODING = "conformance/contracts/test_decoding.py"
# Faults of the release that no test of one tree can see: other bits, and another fault where one is known.
COMPARED = [
    Fault(
        name="a token of the prompt left out",
        contract="C4",
        red=f"'{DECODING}::test_plain[llama]'",
        file="generate.py",
        within="generate_step",
        right="processed = prompt[:n_to_process]",
        wrong="processed = prompt[1:n_to_process]",
    ),
    Fault(
        name="a gate at 0.9",
        contract="C4",
        red=f"'{DECODING}::test_plain[qwen3_next]'",
        file="models/gated_delta.py",
        within="gated_delta_update",
        right="mx.sigmoid(b)",
        wrong="0.9 * mx.sigmoid(b)",
    ),
    Fault(
        name="a ring that keeps one too few",
        contract="C4",
        red=f"'{DECODING}::test_plain[llama max_kv_size]'",
        file="models/cache.py",
        within="RotatingKVCache.__init__",
        right="self.keep = keep",
        wrong="self.keep = keep - 1",
    ),
]
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
FAULTS = {fault.name: fault for fault in read(FOLDER / "judge.toml") if fault.tree == "series"}
# What was found in published experiments, by their interface; and a tree that only its own adapter can ask.
SAMPLE = [("backend", "history fed twice"), ("other names", "a short history")]
FOUND = [
    ("draft_type", "a window out of place"),
    ("draft_type", "a flag that is dropped"),
    ("prompt_lookup", "padding of a recurrent cache lost"),
    ("prompt_lookup", "a token short at an exit"),
    *(("other names", name) for name in FAULTS if name != "a short history"),
]


def asked(tree: Path, folder: Path, test: str, *adapters: str) -> Results:
    return Run(Path(sys.executable), folder, tree / "mlx_lm", adapters, {"PYTHONPATH": str(tree)}).ask(
        ["it"], select=shlex.split(test)
    )


@pytest.mark.planted
@pytest.mark.parametrize("fault", COMPARED, ids=lambda fault: fault.name)
def test_a_fault_that_only_the_base_shows_is_found(fault: Fault, tmp_path: Path) -> None:
    base = unpack(commits()[0], tmp_path / "base")
    tree = plant(base / "mlx_lm", tmp_path / "tree", fault)
    right, found = (asked(where, tmp_path, fault.red) for where in (base, tree))
    assert [group.kind for group in differences(right, found)] == [BROKE]
    assert differences(right, right) == []


@pytest.mark.planted
@pytest.mark.parametrize(("interface", "name"), [*SAMPLE, *(FOUND if FULL else [])])
def test_a_fault_behind_another_interface_is_found(interface: str, name: str, tmp_path: Path) -> None:
    """Through the shipped adapter that fits, or through that of the tree. Without the fault the test passes."""
    source, adapter = unpack(commits()[-1], tmp_path / "source"), tmp_path / "other_names.py"
    adapter.write_text(ADAPTER)
    drafter, _ = INTERFACES[interface]
    # Words of -k have no spaces.
    fault = replace(FAULTS[name], red=FAULTS[name].red.replace("scripted", drafter.split()[0]))
    for planted, outcome in ((None, HOLDS), (fault, BROKEN)):
        tree = published(source, tmp_path / f"tree {outcome}", interface, planted)
        own = [str(adapter)] if interface == "other names" else []
        found = {one.outcome: one.said for one in asked(tree, tmp_path, fault.red, *own).values()}
        assert outcome in found, found
        assert planted or set(found) == {HOLDS}, found
