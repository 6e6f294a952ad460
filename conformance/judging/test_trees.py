"""A judgement finds what is planted in a tree: what only its base shows, and what only an adapter can ask."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from conformance.faults import FOLDER, Fault, plant, read
from conformance.judging.difference import BROKE, differences
from conformance.judging.results import BROKEN, HOLDS, Results
from conformance.judging.run import Run
from conformance.oracle.profiles import FULL
from conformance.series.patches import commits, unpack

# Faults of the release that no test of one tree can see: other bits, and another fault where one is known.
PLAIN = "conformance/contracts/test_decoding.py::test_plain[llama]"
KEEP = "conformance/caches/test_programs.py::test_blocks[RotatingKVCache with keep]"
ORDER = "RotatingKVCache._temporal_order"
COMPARED = [
    Fault("bits", "C4", PLAIN, "generate.py", "= prompt[:n_to_process]", "= prompt[1:n_to_process]"),
    Fault("cases", "C4", KEEP, "models/cache.py", "v[..., : self.keep, :],", "v[..., :0, :],", ORDER),
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
NAMES = {"speculative_generate_step": "guessing_steps", "draft_strategy": "guesser", "draft_model": "helper"}
NAMES |= {"draft_type": "guess_with", "draft-type": "guess-with"}
NAMES |= {"can_trim_prompt_cache": "may_drop", "trim_prompt_cache": "shorten_caches"}
NAMES |= {"snapshot_prompt_cache": "mark_caches", "restore_prompt_cache": "rewind_caches"}
FAULTS = {fault.name: fault for fault in read(FOLDER / "judge.toml") if fault.tree == "series"}


def renamed(into: Path, fault: Fault | None) -> Path:
    """A copy of the series with other names, in which the package draft has another one too."""
    # A tree shares its files with its source, and renames in both.
    source = unpack(commits()[-1], into / "source")
    package = plant(source / "mlx_lm", into / "tree", fault) / "mlx_lm"
    (package / "draft").rename(package / "guessing")
    for path in package.rglob("*.py"):
        text = re.sub(rf"\b({'|'.join(NAMES)})\b", lambda found: NAMES[found[1]], path.read_text())
        path.write_text(re.sub(r"(?<=from )(mlx_lm|\.+)(\.?)draft(?=[. ])", r"\1\2guessing", text))
    return into / "tree"


def asked(tree: Path, folder: Path, test: str, *adapters: str) -> Results:
    run = Run(Path(sys.executable), folder, tree / "mlx_lm", adapters, {"PYTHONPATH": str(tree)})
    return run.ask([*shlex.split(test), "--numprocesses=0"])


@pytest.mark.planted
@pytest.mark.parametrize("fault", COMPARED, ids=lambda fault: fault.name)
def test_a_fault_that_only_the_base_shows_is_found(fault: Fault, tmp_path: Path) -> None:
    base = unpack(commits()[0], tmp_path / "base")
    tree = plant(base / "mlx_lm", tmp_path / "tree", fault)
    was, now = (asked(where, tmp_path, shlex.quote(fault.red)) for where in (base, tree))
    assert [group.kind for group in differences(was, now)] == [BROKE]
    assert differences(was, was) == []


@pytest.mark.planted
@pytest.mark.parametrize("name", FAULTS if FULL else ["history fed twice"])
def test_a_fault_is_found_through_the_adapter_of_a_tree(name: str, tmp_path: Path) -> None:
    """Without the fault the test passes."""
    adapter = tmp_path / "other_names.py"
    adapter.write_text(ADAPTER)
    # Words of -k have no spaces.
    test = FAULTS[name].red.replace("scripted", "right")
    for fault, outcome in ((None, HOLDS), (FAULTS[name], BROKEN)):
        found = asked(renamed(tmp_path / outcome, fault), tmp_path, test, str(adapter)).values()
        assert outcome in {one.outcome for one in found}, found
        assert fault or {one.outcome for one in found} == {HOLDS}, found
