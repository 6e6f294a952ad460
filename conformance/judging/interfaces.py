"""The series with the names of published experiments, and of a tree like no other: what adapters have to call."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.faults import Fault, plant

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
OF_THE_LOOP = {
    "speculative_generate_step": "guessing_steps",
    "draft_strategy": "guesser",
    "draft_model": "helper",
    "draft-model": "helper",
}
# The interfaces of experiments and of a tree like no other: one of their drafters, and names that they have not.
INTERFACES = {
    "draft_type": (
        "ngram-simple",
        OF_THE_LOOP | {"prompt_lookup_num_tokens": "looked_up", "prompt-lookup-num-tokens": "looked-up"},
    ),
    "prompt_lookup": ("lookup", OF_THE_LOOP),
    "backend": ("suffix", OF_THE_LOOP),
    "other names": (
        "right in part",
        OF_THE_LOOP
        | {
            "can_trim_prompt_cache": "may_drop",
            "trim_prompt_cache": "shorten_caches",
            "snapshot_prompt_cache": "mark_caches",
            "restore_prompt_cache": "rewind_caches",
            "draft-type": "guess-with",
            "draft_type": "guess_with",
        },
    ),
}


def published(source: Path, into: Path, interface: str, fault: Fault | None = None) -> Path:
    """A copy of the series with an interface, in which the package draft has another name too."""
    package, names = plant(source / "mlx_lm", into, fault) / "mlx_lm", INTERFACES[interface][1]
    (package / "draft").rename(package / "guessing")
    if interface in ("draft_type", "prompt_lookup"):
        with (package / "generate.py").open("a") as file:
            file.write(STREAMS)
    for path in package.rglob("*.py"):
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[1]], path.read_text())
        path.write_text(re.sub(r"(?<=from )(mlx_lm|\.+)(\.?)draft(?=[. ])", r"\1\2guessing", text))
    if interface == "backend":
        with (package / "generate.py").open("a") as file:
            file.write(BACKEND)
    return into
