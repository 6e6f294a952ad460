"""Two ranks decode together what one decodes, tensor parallel and as a pipeline, a sequence and a batch.

Rank 0 decides all drafts. The costs, memory, strategy and speed of the other rank do not matter: both feed the same
blocks. What fails on rank 0 ends at the same step on both. A deadlock fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load

from conformance import FIXTURE
from conformance.contracts.c9_ranks_agree.ranks import (
    BATCHES,
    CASES,
    FAILING,
    SPLITS,
    STREAMS,
    Asked,
    N,
    Part,
    Result,
    decode,
    decoded,
)
from conformance.doors.ranks import call
from conformance.oracle.findings import broken
from conformance.subjects.architectures import build
from conformance.subjects.prompts import ids
from conformance.subjects.tiny import as_qwen2

# The first gives drafts that are right only for a few tokens.
SHOWN = ("tool", "nothing_to_copy")
# Short prompts for models with random weights.
PATTERN = [7, 3, 9, 4, 7, 3, 9, 4, 7, 3, 9]
ROWS = [[7, 3, 9, 4, 7, 3, 9], [5, 1, 5, 1, 5]]
# The cases of caches that are restored and rewound.
RESTORED = ("costs", "scripted", "scripted ties", "now and then")
# How a model is split, its name, and the cases. After a failure the ranks are in step.
RUNS = {
    **{how: (how, "fixture", [case for case in STREAMS if how in STREAMS[case].splits]) for how in SPLITS},
    **{f"pipeline-{name}": ("pipeline", name, [*RESTORED]) for name in ("deepseek_v41", "qwen3_next")},
    "whole": ("whole", "fixture", ["ungated", "costs"]),
    "failing": ("tensor", "fixture", [*FAILING, "auto"]),
    **{f"rows-{name}": ("pipeline", name, ["rows"]) for name in ("qwen3_next", "qwen3_5", "kimi_k3", "bailing_hybrid")},
    "rows-cannot": ("pipeline", "qwen3_next", ["rank 0 cannot drop", "rank 1 cannot drop"]),
    "rows-failing": ("whole", "llama", [case for case in BATCHES if BATCHES[case].method]),
}


def asked_of(cases: Sequence[str], model: Any, prompts: list[list[int]]) -> Iterator[Asked]:
    """The prompts of each case, with what one rank decodes of them."""
    plain = cache(lambda how, prompt: decode(Part(model), list(prompt), CASES[how]))
    for case in cases:
        how = "plain, sampled" if CASES[case].sampled else "plain"
        if case in BATCHES:
            yield case, ROWS, [plain(how, tuple(prompt)) for prompt in ROWS]
        else:
            for prompt in prompts[:1] if CASES[case].copies_only else prompts:
                yield case, [prompt], [plain(how, tuple(prompt))]


@pytest.mark.parametrize("run", RUNS)
def test_two_ranks_decode_what_one_decodes(tmp_path: Path, run: str) -> None:
    how, name, cases = RUNS[run]
    if name == "fixture":
        model, tokenizer = load(str(FIXTURE))
        prompts = [ids(tokenizer, shown) for shown in SHOWN]
        name = str(as_qwen2(tmp_path) if how == "pipeline" else FIXTURE)
    else:
        model, prompts = build(name), [PATTERN]
    asked = list(asked_of(cases, model, prompts))
    found = call(tmp_path, decoded, how, name, asked)
    for (case, rows, right), (first, other) in zip(asked, found, strict=True):
        check_alike(case, first, other)
        check(case, right, first, other, is_text=PATTERN not in rows)


def check_alike(name: str, first: Result, other: Result) -> None:
    for what in ("blocks", "rows", "drafted", "accepted", "ahead"):
        if getattr(first, what) != getattr(other, what):
            broken(f"{name}: the {what} differ: {getattr(first, what)} on rank 0, {getattr(other, what)} on rank 1")
    # A stage of a pipeline may have no cache with an offset.
    if len(first.offsets | other.offsets) > 1:
        broken(f"{name}: the caches differ: {first.offsets} tokens on rank 0, {other.offsets} on rank 1")


def check(name: str, right: list[Result], first: Result, other: Result, is_text: bool) -> None:
    """What two ranks decode is what one decodes."""
    case = CASES[name]
    failed = case.error or case.method
    for row, ((tokens, end), one) in enumerate(zip(first.rows, right, strict=True)):
        fails = failed and row == 0
        if tokens != one.tokens[: len(tokens) if fails else N] or end != ("error" if fails else "length"):
            broken(f"{name}: two ranks decode {tokens} and end with {end!r}, one rank {one.tokens}")
    if not failed and not first.offsets | other.offsets <= right[0].offsets:
        broken(f"{name}: two ranks leave {first.offsets | other.offsets} tokens in the cache, one {right[0].offsets}")
    if bool(first.error) != bool(case.error) or case.error not in first.error:
        broken(f"{name}: rank 0 says {first.error!r} instead of {case.error!r}")
    if case.error and not other.error:
        broken(f"{name}: rank 0 says {first.error!r}, and rank 1 nothing")
    # What random weights say has few copies.
    is_sure = case.accepts is not None and (is_text or name == "scripted")
    if is_sure and (bool(first.accepted) != case.accepts or not first.drafted):
        broken(f"{name}: {first.accepted} of {first.drafted} are accepted")
    if case.ahead and not first.ahead:
        broken(f"{name}: plain decoding never runs ahead")
