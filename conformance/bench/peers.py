"""Measure other implementations of drafting on the same weights and prompts, each in its own environment.

The speed of a peer is a ratio to its own plain decoding. If a peer cannot be installed or fails, its row says so.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from conformance import ROOT
from conformance.bench import models
from conformance.bench.cells import Row
from conformance.bench.models import Subject
from conformance.bench.plan import LEAST_REPEATS, Plan, Progress
from conformance.bench.rewinds import speeds
from conformance.bench.tasks import single
from conformance.series.patches import DEFAULT

FOLDER = ROOT / "vendor" / "bench"
SHOWN = ("json_rag", "echo", "code-edit", "qa-short", "prose")
INSTALL_SECONDS, RUN_SECONDS = 1200, 1800


@dataclass(frozen=True)
class Peer:
    """The packages to install, the script to run, and its options."""

    name: str
    folder: str
    script: str
    packages: tuple[str, ...]
    options: tuple[dict[str, Any], ...]


EXTRA = "" if sys.platform == "darwin" else "[cpu]"
PEERS = (
    Peer(
        "stock mlx-lm, draft model",
        "stock",
        "peer_mlx.py",
        (f"mlx-lm{EXTRA}=={DEFAULT}",),
        ({"draft": "the fixture", "num_draft_tokens": 2}, {"draft": "first 2 layers", "num_draft_tokens": 2}),
    ),
    Peer(
        "transformers, prompt lookup",
        "transformers",
        "peer_torch.py",
        ("torch==2.13.0", "transformers"),
        ({"prompt_lookup_num_tokens": 10},),
    ),
)


class MissingError(Exception):
    """A peer has no numbers. The message is the reason, for a table."""


def installed(peer: Peer) -> Path:
    """The Python of the environment of a peer. The environment is made once."""
    folder = FOLDER / peer.folder
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    if stamp.exists() and json.loads(stamp.read_text()) == list(peer.packages):
        return python
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *peer.packages]
    try:
        venv.create(folder, clear=True, with_pip=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"cannot be installed ({type(error).__name__})") from error
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        raise MissingError(f"pip cannot install {' '.join(peer.packages)}")
    stamp.write_text(json.dumps(peer.packages))
    return python


def asked(python: Path, script: str, job: dict[str, Any]) -> Iterator[Row]:
    """Run a script in another environment. Yields its output: a line of JSON for each prompt."""
    path = FOLDER / "job.json"
    path.write_text(json.dumps(job))
    command = [str(python), str(Path(__file__).with_name(script)), str(path)]
    # The other environment must not find packages of this one.
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"HF_HUB_OFFLINE": "1"}
    with open(FOLDER / "stderr.txt", "w+") as stderr:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env) as process:
            limit = Timer(RUN_SECONDS, process.kill)
            limit.start()
            assert process.stdout is not None
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
            limit.cancel()
        if process.returncode != 0:
            stderr.seek(0)
            print(stderr.read()[-2000:], file=sys.stderr)
            raise MissingError(f"ended with status {process.returncode}")


def measure(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    for peer in PEERS:
        try:
            if not subject.fixture:
                raise MissingError("is only measured with the fixture, whose weights both load")
            if plan.quick:
                raise MissingError("is left out of a quick run: it installs packages")
            progress(f"peers: installing {peer.name}")
            python = installed(peer)
            for options in peer.options:
                yield from compared(peer, python, subject, plan, options, progress)
        except MissingError as missing:
            progress(f"peers: {peer.name} {missing}")
            yield {"peer": peer.name, "missing": str(missing), "speed": None}


def compared(
    peer: Peer, python: Path, subject: Subject, plan: Plan, options: dict[str, Any], progress: Progress
) -> Iterator[Row]:
    prompts = {workload: single(workload, 0).tokens(subject)[0] for workload in SHOWN}
    job: dict[str, Any] = {
        "model": str(models.save(subject.model, FOLDER / "models" / "widened")),
        "prompts": prompts,
        "eos": sorted(subject.eos),
        "tokens": plan.tokens,
        "repeats": plan.repeats,
        "options": {key: value for key, value in options.items() if key != "draft"},
    }
    if draft := options.get("draft"):
        job["draft"] = str(models.save(subject.drafts[draft], FOLDER / "models" / draft.replace(" ", "-")))
    for answer in asked(python, peer.script, job):
        said = ", ".join(f"{key}={value}" for key, value in options.items())
        yield finished(answer, peer.name, said) | {"model": subject.name, "weights": subject.weights, "batch": 1}
        progress(f"peers: {peer.name}, {said}, {answer['workload']}")


def finished(answer: Row, peer: str, options: str) -> Row:
    """Turn an answer into a row. It has the ratios of pairs if all runs gave the same tokens."""
    plain, drafted = answer["plain"], answer["drafted"]
    tokens = [run["tokens"] for run in (*plain, *drafted)]
    equal = min(len(plain), len(drafted)) >= LEAST_REPEATS and all(each == tokens[0] for each in tokens)
    # Each drafted run lies between two plain ones. The first block may already hold all of a short answer.
    slow = [run["seconds"] / run["timed"] if run["timed"] else None for run in plain]
    fast = [run["seconds"] / run["timed"] if run["timed"] else None for run in drafted]
    ratios = [(a + b) / 2 / c for a, b, c in zip(slow, slow[1:], fast, strict=False) if a and b and c]
    last = drafted[-1]
    return (
        {
            "peer": peer,
            "options": options,
            "workload": answer["workload"],
            "versions": answer["versions"],
            "prompt_tokens": answer["prompt_tokens"],
            "tokens": len(last["tokens"]),
            "plain_tps": 1 / statistics.median(filter(None, slow)),
            "tokens_per_forward": last["timed"] / last["forwards"] if last["forwards"] else None,
            "fed_per_token": last["fed"] / last["timed"] if last["timed"] else None,
        }
        | speeds(ratios, equal and len(ratios) > 0)
        | {"parity": equal}
    )
