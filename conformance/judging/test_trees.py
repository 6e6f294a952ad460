"""A judgement finds what is planted in a tree: what only its base shows, and what only an adapter can ask."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.faults import FOLDER, Fault, plant, read
from conformance.judging.difference import BROKE, differences
from conformance.judging.results import BROKEN, HOLDS, Results
from conformance.judging.run import Run
from conformance.series.patches import commits, unpack

FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
PLAIN = "conformance/contracts/test_decoding.py::test_plain"
KEEP = "conformance/caches/test_programs.py::test_blocks[RotatingKVCache with keep]"
# Faults of the release that no test of one tree can see: other bits, and another fault where one is known.
COMPARED = [
    (f"{PLAIN}[llama]", "generate.py", "generate_step", "= prompt[:n_to_process]", "= prompt[1:n_to_process]"),
    (f"{PLAIN}[qwen3_next]", "models/gated_delta.py", "gated_delta_update", "mx.sigmoid(b)", "0.9 * mx.sigmoid(b)"),
    (f"{PLAIN}[llama max_kv_size]", "models/cache.py", "RotatingKVCache.__init__", "= keep\n", "= keep - 1\n"),
    (KEEP, "models/cache.py", "RotatingKVCache._temporal_order", "v[..., : self.keep, :],", "v[..., :0, :],"),
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
    *(("other names", name) for name in FAULTS if name != "a short history"),
]
# What a tree has beside the loop of the series, and calls by another name: nothing but its adapter knows.
BACKEND = """

from typing import Literal


def prompt_lookup_generate_step(
    prompt, model, *, backend: Literal["suffix", "ngram-simple"] = "suffix", num_draft_tokens=3, **options
):
    how = dict(draft=backend, num_draft_tokens=num_draft_tokens, disable_adaptive_gate=True)
    yield from guessing_steps(prompt, model, **how, **options)
"""
# The arguments that the streams of experiments name in their signature, and that of the series takes by **kwargs.
STREAMS = """

_stream_generate = stream_generate


def stream_generate(model, tokenizer, prompt, *args, draft_type=None, prompt_lookup_num_tokens=None, **options):
    named = dict(draft_type=draft_type, prompt_lookup_num_tokens=prompt_lookup_num_tokens)
    options.update((name, value) for name, value in named.items() if value is not None)
    yield from _stream_generate(model, tokenizer, prompt, *args, **options)
"""
OF_THE_LOOP = {"speculative_generate_step": "guessing_steps", "draft_strategy": "guesser", "draft_model": "helper"}
OF_CACHES = {"can_trim_prompt_cache": "may_drop", "trim_prompt_cache": "shorten_caches"}
OF_CACHES |= {"snapshot_prompt_cache": "mark_caches", "restore_prompt_cache": "rewind_caches"}
# The interfaces of experiments and of a tree like no other: one of their drafters, and names that they have not.
INTERFACES: dict[str, tuple[str, dict[str, str]]] = {
    "draft_type": ("ngram-simple", {"prompt_lookup_num_tokens": "looked_up"}),
    "backend": ("suffix", {}),
    "other names": ("right in part", OF_CACHES | {"draft_type": "guess_with"}),
}


def published(source: Path, into: Path, interface: str, fault: Fault | None = None) -> Path:
    """A copy of the series with an interface, in which the package draft has another name too."""
    package, names = plant(source / "mlx_lm", into, fault) / "mlx_lm", OF_THE_LOOP | INTERFACES[interface][1]
    # Options are written with a hyphen.
    names |= {old.replace("_", "-"): new.replace("_", "-") for old, new in names.items()}
    (package / "draft").rename(package / "guessing")
    with (package / "generate.py").open("a") as file:
        file.write(STREAMS if interface == "draft_type" else "")
    for path in package.rglob("*.py"):
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[1]], path.read_text())
        path.write_text(re.sub(r"(?<=from )(mlx_lm|\.+)(\.?)draft(?=[. ])", r"\1\2guessing", text))
    with (package / "generate.py").open("a") as file:
        file.write(BACKEND if interface == "backend" else "")
    return into


def asked(tree: Path, folder: Path, test: str, *adapters: str) -> Results:
    return Run(Path(sys.executable), folder, tree / "mlx_lm", adapters, {"PYTHONPATH": str(tree)}).ask(
        [*shlex.split(test), "--numprocesses=0"]
    )


@pytest.mark.planted
@pytest.mark.parametrize(("test", "file", "within", "right", "wrong"), COMPARED, ids=[one[2] for one in COMPARED])
def test_a_fault_that_only_the_base_shows_is_found(
    test: str, file: str, within: str, right: str, wrong: str, tmp_path: Path
) -> None:
    fault = Fault("only the base shows it", "C4", test, file, right, wrong, within)
    base = unpack(commits()[0], tmp_path / "base")
    tree = plant(base / "mlx_lm", tmp_path / "tree", fault)
    was, now = (asked(where, tmp_path, shlex.quote(test)) for where in (base, tree))
    assert [group.kind for group in differences(was, now)] == [BROKE]
    assert differences(was, was) == []


@pytest.mark.planted
@pytest.mark.parametrize(("interface", "name"), [*SAMPLE, *(FOUND if FULL else [])])
def test_a_fault_behind_another_interface_is_found(interface: str, name: str, tmp_path: Path) -> None:
    """Through the shipped adapter that fits, or through that of the tree. Without the fault the test passes."""
    adapter = tmp_path / "other_names.py"
    adapter.write_text(ADAPTER)
    drafter, _ = INTERFACES[interface]
    # Words of -k have no spaces.
    fault = replace(FAULTS[name], red=FAULTS[name].red.replace("scripted", drafter.split()[0]))
    for planted, outcome in ((None, HOLDS), (fault, BROKEN)):
        # A tree shares its files with its source, and renames in both.
        source = unpack(commits()[-1], tmp_path / f"source {outcome}")
        tree = published(source, tmp_path / f"tree {outcome}", interface, planted)
        own = [str(adapter)] if interface == "other names" else []
        found = {one.outcome: one.said for one in asked(tree, tmp_path, fault.red, *own).values()}
        assert outcome in found, found
        assert planted or set(found) == {HOLDS}, found
