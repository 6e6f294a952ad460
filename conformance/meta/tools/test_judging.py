"""A judgement names the contract of each planted fault, and no other contract.

Each tree has one fault. Its functions have other names than in the release, so that only its adapter can call them. It
is asked the part of the cases that the fault is in, and all of them with CONFORMANCE_PROFILE=full.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import ROOT
from conformance.judging.compare import BAD, differences
from conformance.judging.plants import PLANTS, PUBLISHED, Plant, plant, published
from conformance.series.patches import commits, unpack

# One way to draft is enough: the faults do not depend on it.
ADAPTER = """
import copy
import mlx.core as mx
from conformance.adapters import FIXTURE
from mlx_lm.generate import guessing_steps
from mlx_lm.models.cache import drop_tokens, make_prompt_cache, may_drop

OPTIONS = ("max_tokens", "sampler", "logits_processors", "prompt_cache", "kv_bits", "kv_group_size")
"""
ADAPTERS = {
    "stock": """
DRAFTERS = ("similar",)
COMMANDS = {"generate": ["--helper", FIXTURE]}

def decode(model, prompt, drafts, *, prompt_cache, **options):
    helper = drafts.draft_model(model)
    both = [*prompt_cache, *make_prompt_cache(helper)]
    steps = guessing_steps(mx.array(prompt), model, helper, prompt_cache=both, num_draft_tokens=3, **options)
    try:
        yield from steps
    finally:
        steps.close()
        prompt_cache[:] = both[: len(prompt_cache)]

def snapshot(caches):
    return copy.deepcopy(caches)

def restore(caches, snapshot):
    caches[:] = copy.deepcopy(snapshot)

def can_trim(caches, n):
    return may_drop(caches)

def trim(caches, n):
    return drop_tokens(caches, n)
""",
    "series": """
from mlx_lm.models.cache import mark_caches, rewind_caches
from conformance.testing.drafts.scripted import Scripted

DRAFTERS = ("right in part",)
COMMANDS = {"generate": ["--guess-with", "auto", "--disable-adaptive-gate"]}

def decode(model, prompt, drafts, **options):
    guesser = Scripted(drafts.right, max(drafts.right) + 1)
    how = dict(guesser=guesser, num_draft_tokens=3, disable_adaptive_gate=True)
    return guessing_steps(mx.array(prompt), model, **how, **options)

def snapshot(caches):
    return mark_caches(caches)

def restore(caches, snapshot):
    rewind_caches(caches, snapshot)

def can_trim(caches, n):
    return may_drop(caches, n)

def trim(caches, n):
    return drop_tokens(caches, n)
""",
}


# Where each contract is asked.
PARTS = {
    "C1 snapshot": "caches",
    "C2 trim": "caches",
    "C4 blocks": "caches",
    "C3 exits": "decoding",
    "C5 processors": "decoding",
    "C6 options": "commands",
    "C3 server prefixes": "server",
}


def asked_of(fault: Plant) -> list[str]:
    return [] if os.environ.get("CONFORMANCE_PROFILE") == "full" else ["--only", PARTS[fault.contract]]


def judged(flavour: str, folder: Path, fault: Plant | None, *options: str) -> dict[str, Any]:
    """Make a tree, and judge it."""
    source = unpack(commits()[0 if flavour == "stock" else -1], folder / "source")
    tree = plant(source, folder / "tree", fault)
    adapter = folder / "other_names.py"
    adapter.write_text(ADAPTER + ADAPTERS[flavour])
    return asked(tree, folder / "out.json", "--adapter", str(adapter), *options)


def asked(tree: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "conformance.judging", "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["file"] == str(tree / "mlx_lm")
    return found


@pytest.fixture
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the tree without a fault. All processes of the tests share one run."""
    flavour: str = request.getfixturevalue("flavour")
    options = asked_of(request.getfixturevalue("fault"))
    shared = tmp_path_factory.getbasetemp().parent / "-".join(["judged", flavour, *options])
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "base.json").exists():
            folder = tmp_path_factory.mktemp("base")
            (shared / "base.json").write_text(json.dumps(judged(flavour, folder, None, *options)))
    return dict(json.loads((shared / "base.json").read_text()))


@pytest.mark.planted
@pytest.mark.parametrize(
    ("flavour", "fault"),
    [pytest.param(flavour, one, id=f"{flavour}-{one.name}") for flavour, some in PLANTS.items() for one in some],
)
def test_a_planted_tree_is_found(flavour: str, fault: Plant, base: dict[str, Any], tmp_path: Path) -> None:
    named_alone(fault, base, judged(flavour, tmp_path, fault, *asked_of(fault)), tmp_path)


def named_alone(fault: Plant, base: dict[str, Any], tree: dict[str, Any], folder: Path) -> None:
    """The contract of a fault is broken and no other, and its lines print something else with it than without."""
    groups = [group for group in differences(base["cases"], tree["cases"]) if group.kind in BAD]
    assert {group.contract for group in groups} == {fault.contract}, [(g.contract, g.example, g.said) for g in groups]
    for group in groups:
        if group.lines and fault.contract not in IN_A_SHELL:
            right, wrong = (said_by(group.lines, one["file"], folder) for one in (base, tree))
            assert right != wrong, group.lines


@pytest.mark.parametrize(
    ("interface", "part", "fault"), [pytest.param(*one, id=f"{one[0]}-{one[2].name}") for one in PUBLISHED]
)
def test_what_was_found_in_an_experiment_is_found(interface: str, part: str, fault: Plant, tmp_path: Path) -> None:
    """Through the adapter of its interface, which is the one that fits."""
    source = unpack(commits()[-1], tmp_path / "source")
    base, tree = (
        asked(published(source, tmp_path / name, interface, one), tmp_path / f"{name}.json", "--only", part)
        for name, one in (("base", None), ("tree", fault))
    )
    assert base["adapter"] == tree["adapter"] == interface
    named_alone(fault, base, tree, tmp_path)


# The lines of these are commands for a shell.
IN_A_SHELL = ("C6 options", "C3 server prefixes")


def said_by(lines: str, package: str, folder: Path) -> str:
    """The output of a reproduction with a tree, without the suite."""
    file = folder / "lines.py"
    file.write_text(lines)
    env = os.environ | {"PYTHONPATH": str(Path(package).parent), "MLX_DISABLE_COMPILE": "1"}
    done = subprocess.run([sys.executable, file], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return done.stdout
