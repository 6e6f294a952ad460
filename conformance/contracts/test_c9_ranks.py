"""Two ranks decode together what one decodes, tensor parallel and as a pipeline, a sequence and a batch.

Rank 0 decides all drafts. The costs, memory and strategy of the other rank do not matter: both feed the same blocks. A
deadlock fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftStats, NgramModStrategy, NgramModTable
from mlx_lm.generate import BatchGenerator, generate_step, prompt_lookup_generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load, sharded_load

from conformance import FIXTURE
from conformance.doors.ranks import call
from conformance.drafters import Partly, Scripted
from conformance.oracle.findings import WHOLE, broken
from conformance.oracle.recorder import Run, fed, offsets_of
from conformance.oracle.rows import FREE, Row
from conformance.oracle.run import SEED, compare_tokens
from conformance.subjects.architectures import build
from conformance.subjects.prompts import ids
from conformance.subjects.tiny import as_qwen2

TOKENS, VOCAB = 24, 1024
# Short prompts for models with random weights: of one row, and of two.
PATTERN = [7, 3, 9, 4, 7, 3, 9, 4, 7, 3, 9]
PATTERNS = [PATTERN[:7], [5, 1, 5, 1, 5]]


class Unasked:
    """A strategy for the ranks after the first. It fails if anything calls it."""

    def observe(self, tokens: Sequence[int]) -> None:
        raise AssertionError("asked to observe")

    propose = accept = observe


# The options of a rank, by its number and the text: the prompt with the answer of plain decoding.
Options = Callable[[int, list[int]], dict[str, Any]]


def of_the_first(make: Callable[[list[int]], Any], **more: Any) -> Options:
    """A strategy of rank 0. Nobody may ask the other ranks."""
    return lambda rank, text: {"draft_strategy": Unasked() if rank else make(text), **more}


def of_a_memory(rank: int, text: list[int]) -> dict[str, Any]:
    """A memory of the text. On other ranks it holds other next tokens."""
    table = NgramModTable(3)
    NgramModStrategy(table, VOCAB).observe(text if rank == 0 else [t for token in text for t in (token, token, rank)])
    return {"draft_type": "ngram-mod", "ngram_mod_table": table, **UNGATED}


def of_other_costs(rank: int, _: list[int]) -> dict[str, Any]:
    return {"draft_type": "auto", "draft_costs": BlockCosts((1, 2, 16), (1, 1.1 + rank, 4 + 9 * rank))}


UNGATED = {"num_draft_tokens": 5, **WHOLE}
WAYS: dict[str, Options] = {
    "memory": of_a_memory,
    "costs": of_other_costs,
    # Each rank learns its own times of passes.
    "margin": lambda *_: {"draft_type": "auto", "draft_margin": "auto"},
    "sampled": lambda *_: {"draft_type": "auto", "sampler": make_sampler(0.8)},
    "scripted": of_the_first(lambda text: Scripted(text, 64), draft_margin=0.5, **UNGATED),
}
# Two rows, of whose drafts the first half is right.
ROWS = "rows"
# Drafts of these are accepted whatever the costs are on this machine.
ACCEPTED = ("memory", "costs", "scripted", ROWS)
# How a model is split, its name, and the ways to draft. The ranks are started once for those of a run. In the whole
# every rank has all of the model. Caches of a pipeline are restored and rewound.
Part = tuple[str, str, Sequence[str]]
RUNS: dict[str, list[Part]] = {
    "streams": [
        ("tensor", "fixture", [*WAYS]),
        ("pipeline", "fixture", ["costs", "margin"]),
        *(("pipeline", name, ["margin", "scripted"]) for name in ("deepseek_v41", "qwen3_next")),
    ],
    "rows": [
        ("whole", "fixture", ["memory", "costs"]),
        *(("pipeline", name, [ROWS]) for name in ("qwen3_next", "qwen3_5", "kimi_k3", "bailing_hybrid")),
    ],
}


def decode(model: Any, prompt: list[int], way: str, group: Any = None, right: Sequence[int] = ()) -> list[Run]:
    """Decode a prompt, together with the other ranks, or alone without drafts."""
    run, step = Run(prompt, make_prompt_cache(model)), generate_step
    options = WAYS[way](group.rank() if group else 0, [*prompt, *right])
    if group is None:
        options = {name: options[name] for name in options.keys() & {"sampler"}}
    else:
        step = speculative_generate_step if "draft_strategy" in options else prompt_lookup_generate_step
        run.stats, options["draft_group"] = DraftStats(), group
    mx.random.seed(SEED)
    run.loop(step, model, TOKENS, **options)
    return [replace(run, cache=[], rows=[], offsets={0: offsets_of(run.cache)})]


def decode_rows(model: Any, prompts: list[list[int]], group: Any, right: list[list[int]]) -> list[Run]:
    """Decode prompts in a batch, together with the other ranks."""
    rows = [Row(prompt=prompt, max_tokens=TOKENS, right=Run()) for prompt in prompts]
    with fed(model) as blocks:
        generator = BatchGenerator(model, draft_costs=FREE, draft_group=group)
        of = {}
        for row, answer in zip(rows, right, strict=True):
            row.strategy = Partly([*row.prompt, *answer], 0.5)
            of[generator.insert([row.prompt], [TOKENS], **row.options())[0]] = row
        while responses := generator.next_generated():
            for response in responses:
                of[response.uid].take([response])
    return [Run(tokens=row.tokens, drafted=row.drafted, blocks=blocks, stats=row.stats) for row in rows]


@cache
def split(how: str, name: str, group: Any) -> Any:
    """This rank's part of a model: a folder with a slash in its name, or an architecture."""
    if "/" in name and how == "whole":
        return load(name)[0]
    if "/" in name:
        return sharded_load(name, group if how == "pipeline" else None, group if how == "tensor" else None)[0]
    model = build(name)
    if how == "pipeline":
        model.model.pipeline(group)
    return model


# How a model is split, its name, a way to draft, the prompts of its rows, and what one rank decodes of each.
Asked = tuple[str, str, str, list[list[int]], list[list[int]]]


def decoded(asked: Sequence[Asked]) -> Iterator[list[Run]]:
    """What this rank decodes of each."""
    group = mx.distributed.init(strict=True, backend="ring")
    for how, name, way, prompts, right in asked:
        model = split(how, name, group)
        if way == ROWS:
            yield decode_rows(model, prompts, group, right)
        else:
            yield decode(model, prompts[0], way, group, right[0])
    # A rank that ends takes the pass from the other one that runs ahead.
    mx.eval(mx.distributed.all_sum(mx.array(1), group=group))


@pytest.mark.parametrize("run", RUNS)
def test_two_ranks_decode_what_one_decodes(tmp_path: Path, run: str) -> None:
    asked, rights = list[Asked](), list[list[Run]]()
    for how, name, ways in RUNS[run]:
        model, tokenizer = load(str(FIXTURE)) if name == "fixture" else (build(name), None)
        stream = ids(tokenizer, "tool") if tokenizer else PATTERN
        folder = str((as_qwen2(tmp_path) if how == "pipeline" else FIXTURE) if tokenizer else name)
        plain = cache(lambda way, *prompt, model=model: decode(model, list(prompt), way))
        for way in ways:
            same = way if way == "sampled" else "margin"
            prompts = PATTERNS if way == ROWS else [stream]
            rights.append([plain(same, *prompt)[0] for prompt in prompts])
            asked.append((how, folder, way, prompts, [run.tokens for run in rights[-1]]))
    for one, right, (first, other) in zip(asked, rights, call(tmp_path, decoded, asked), strict=True):
        check(f"{one[1]}, {one[2]}: ", one[2], right, first, other)


def offsets(*runs: Run) -> set[int]:
    """Of the caches that have one. A stage of a pipeline may have none."""
    return {offset for run in runs for offset in run.offsets.get(0, ()) if offset is not None}


def check(about: str, way: str, right: list[Run], first: list[Run], other: list[Run]) -> None:
    """What two ranks decode is what one decodes, in the same blocks."""
    for one, another, alone in zip(first, other, right, strict=True):
        for what in ("blocks", "tokens", "drafted", "stats.drafted"):
            a, b = map(attrgetter(what), (one, another))
            if a != b:
                broken(f"{about}the {what} differ: {a} on rank 0, {b} on rank 1")
        compare_tokens(one, Run(tokens=alone.tokens), f"{about}two ranks, ", 0.0)
    left = offsets(*first, *other)
    if len(left) > 1 or not left <= offsets(right[0]):
        broken(f"{about}two ranks leave {left} tokens in the cache, one {offsets(right[0])}")
    if way in ACCEPTED and not any(run.stats.accepted for run in first):
        broken(f"{about}no draft is accepted")
