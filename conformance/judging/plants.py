"""Trees with one fault each, and with other names than the release has: what a judgement has to find."""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Plant:
    name: str
    # The folder of its file and the id in it.
    test: str
    file: str
    right: str
    wrong: str
    after: str = ""
    # Whether it is cheap, and planted in each run of the tests of the suite itself.
    sample: bool = False

    @property
    def nodeid(self) -> str:
        folder, _, test = self.test.partition("::")
        return f"conformance/{folder}/test_through_adapter.py::{test}"


# Faults in the stock release, and in the series.
TREES = {
    flavour: [Plant(**one) for one in faults]
    for flavour, faults in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def of_the_series(drafter: str) -> list[Plant]:
    """The faults of the series, each with its test for another drafter."""
    return [replace(fault, test=fault.test.replace("scripted", drafter)) for fault in TREES["series"]]


# What a tree has beside the loop of the series, and calls by another name: nothing but its adapter knows.
BACKEND = """

from typing import Literal


def prompt_lookup_generate_step(
    prompt, model, *, backend: Literal["suffix", "ngram-simple"] = "suffix", num_draft_tokens=3, **options
):
    how = dict(draft=backend, num_draft_tokens=num_draft_tokens, disable_adaptive_gate=True)
    yield from guessing_steps(prompt, model, **how, **options)
"""
OF_THE_LOOP = {
    "speculative_generate_step": "guessing_steps",
    "draft_strategy": "guesser",
    "draft_model": "helper",
    "draft-model": "helper",
}
NAMES = OF_THE_LOOP | {
    "can_trim_prompt_cache": "may_drop",
    "trim_prompt_cache": "drop_tokens",
    "snapshot_prompt_cache": "mark_caches",
    "restore_prompt_cache": "rewind_caches",
    "draft-type": "guess-with",
    "draft_type": "guess_with",
}
# The interfaces of experiments, one of their drafters, and the names that they do not have.
INTERFACES = {
    "draft_type": (
        "ngram-simple",
        OF_THE_LOOP | {"prompt_lookup_num_tokens": "looked_up", "prompt-lookup-num-tokens": "looked-up"},
    ),
    "prompt_lookup": ("lookup", OF_THE_LOOP),
    "backend": ("suffix", OF_THE_LOOP),
}


def plant(source: Path, into: Path, fault: Plant | None = None, names: dict[str, str] | None = None) -> Path:
    """Copy a tree, with a fault or without one, and give it other names."""
    shutil.copytree(source / "mlx_lm", into / "mlx_lm", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        path = into / "mlx_lm" / fault.file
        text = path.read_text()
        at = text.index(fault.right, text.index(fault.after))
        path.write_text(text[:at] + fault.wrong + text[at + len(fault.right) :])
    renamed = re.compile(rf"\b({'|'.join(names or {'no such name': ''})})\b")
    for path in (into / "mlx_lm").rglob("*.py"):
        text = path.read_text()
        if names and (made := renamed.sub(lambda found: names[found[1]], text)) != text:
            path.write_text(made)
    return into


def published(source: Path, into: Path, interface: str, fault: Plant | None = None) -> Path:
    """A tree that drafts through the interface of an experiment, and whose package of the series has another name."""
    plant(source, into, fault, INTERFACES[interface][1])
    package = into / "mlx_lm"
    (package / "draft").rename(package / "guessing")
    for path in package.rglob("*.py"):
        text = path.read_text()
        if (made := re.sub(r"(?<=from )(mlx_lm|\.+)(\.?)draft(?=[. ])", r"\1\2guessing", text)) != text:
            path.write_text(made)
    if interface == "backend":
        with (package / "generate.py").open("a") as file:
            file.write(BACKEND)
    return into
