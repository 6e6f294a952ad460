"""Two ranks decode together what one decodes, tensor parallel and as a pipeline, a sequence and a batch.

Rank 0 decides all drafts. The costs, memory, strategy and speed of the other rank do not matter: both feed the same
blocks. A strategy that fails on rank 0 ends the drafts of both. A deadlock fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftStats, NgramModStrategy, NgramModTable, Planner, SuffixStrategy
from mlx_lm.generate import BatchGenerator, generate_step, prompt_lookup_generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load, sharded_load

from conformance import FIXTURE
from conformance.doors.ranks import call
from conformance.drafters import Partly, Scripted, Wrong
from conformance.oracle.findings import broken
from conformance.oracle.recorder import fed
from conformance.oracle.rows import FREE, breaking
from conformance.subjects.architectures import build
from conformance.subjects.prompts import ids
from conformance.subjects.tiny import as_qwen2

N, SEED, VOCAB = 24, 5, 1024
# Short prompts for models with random weights.
PATTERN = [7, 3, 9, 4, 7, 3, 9, 4, 7, 3, 9]
ROWS = [[7, 3, 9, 4, 7, 3, 9], [5, 1, 5, 1, 5]]


class Unasked:
    """A strategy for the ranks after the first. It fails if anything calls it."""

    def observe(self, tokens: Sequence[int]) -> None:
        raise AssertionError("asked to observe")

    propose = accept = observe


# The options of a rank, by its number and the text: the prompt with the answer of plain decoding.
Options = Callable[[int, list[int]], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    options: Options = lambda *_: {}
    # Whether drafts are accepted whatever the costs are on this machine, or none is.
    accepts: bool | None = None
    # What the error of rank 0 says, and the reason why it drafts no more.
    error: str = ""
    reason: str = ""
    # Of a batch: how the strategy of the first row on rank 0 fails, and the rank whose caches cannot drop.
    method: tuple[str, int] | None = None
    cannot: int | None = None


def of_the_first(make: Callable[[list[int]], Any], **more: Any) -> Options:
    """A strategy of rank 0. Nobody may ask the other ranks."""
    return lambda rank, text: {"draft_strategy": Unasked() if rank else make(text), **more}


def failing(strategy: Any, method: str, at: int) -> Any:
    setattr(strategy, method, breaking(getattr(strategy, method), at))
    return strategy


def fails(method: str, at: int) -> Case:
    return Case(of_the_first(lambda _: failing(SuffixStrategy(), method, at)), reason=f"call {at}")


def of_a_memory(rank: int, text: list[int]) -> dict[str, Any]:
    """A memory of the text. On other ranks it holds other next tokens."""
    table = NgramModTable(3)
    NgramModStrategy(table, VOCAB).observe(text if rank == 0 else [t for token in text for t in (token, token, rank)])
    return {"draft_type": "ngram-mod", "ngram_mod_table": table, **UNGATED}


def of_other_costs(rank: int, _: list[int]) -> dict[str, Any]:
    return {"draft_type": "auto", "draft_costs": BlockCosts((1, 2, 16), (1, 1.1 + rank, 4 + 9 * rank))}


def slow(seconds: float) -> Callable[[mx.array], mx.array]:
    """A greedy sampler that takes so long. What a rank learns of the costs of passes depends on it."""

    def sampler(logprobs: mx.array) -> mx.array:
        time.sleep(seconds)
        return mx.argmax(logprobs, axis=-1)

    return sampler


UNGATED = {"disable_adaptive_gate": True, "num_draft_tokens": 5}
STREAMS: dict[str, Case] = {
    "memory": Case(of_a_memory, accepts=True),
    "costs": Case(of_other_costs, accepts=True),
    "slow first": Case(lambda rank, _: {"draft_type": "auto", "sampler": slow(0.005 * (1 - rank))}),
    "slow last": Case(lambda rank, _: {"draft_type": "auto", "sampler": slow(0.005 * rank)}),
    "margin": Case(lambda *_: {"draft_type": "auto", "draft_margin": "auto"}),
    "sampled": Case(lambda *_: {"draft_type": "auto", "sampler": make_sampler(0.8)}),
    "scripted": Case(of_the_first(lambda text: Scripted(text, 64), draft_margin=0.5, **UNGATED), accepts=True),
}
METHODS = (("propose", 2), ("observe", 1), ("accept", 0))
# After a failure the ranks are in step.
FAILING: dict[str, Case] = {
    **{f"{method} fails": fails(method, at) for method, at in METHODS},
    "no token": Case(of_the_first(lambda _: Wrong(-1)), reason="-1"),
    "other memories": Case(
        lambda rank, _: {"draft_type": "ngram-mod", "ngram_mod_table": NgramModTable(3 + rank), "ngram_size": 3},
        error="rank",
    ),
    "auto": Case(lambda *_: {"draft_type": "auto"}),
}
# Two rows, of whose drafts the first half is right. What the stage of one rank cannot drop, no stage drafts.
CANNOT = {f"rank {rank} cannot drop": Case(cannot=rank, accepts=False) for rank in (0, 1)}
ROW_FAILS = {
    f"a row whose {method} fails": Case(method=(method, min(at, 1)), reason=f"{method} failed")
    for method, at in METHODS
}
BATCHES = {"rows": Case(accepts=True)} | CANNOT | ROW_FAILS
CASES = STREAMS | FAILING | BATCHES
# How a model is split, its name, and the cases. The ranks are started once for those of a run. In the whole every rank
# has all of the model. Caches of a pipeline are restored and rewound.
Part = tuple[str, str, Sequence[str]]
RUNS: dict[str, list[Part]] = {
    "streams": [
        ("tensor", "fixture", [*STREAMS, *FAILING]),
        ("pipeline", "fixture", ["costs", "propose fails", "auto"]),
        *(("pipeline", name, ["margin", "scripted"]) for name in ("deepseek_v41", "qwen3_next")),
    ],
    "rows": [
        ("whole", "fixture", ["memory", "costs"]),
        *(("pipeline", name, ["rows"]) for name in ("qwen3_next", "qwen3_5", "kimi_k3", "bailing_hybrid")),
        ("pipeline", "qwen3_next", [*CANNOT]),
        ("whole", "llama", [*ROW_FAILS]),
    ],
}


@dataclass
class Result:
    """The record of one rank for one decode."""

    # The tokens of each row, and why it ended.
    rows: list[tuple[list[int], str]]
    blocks: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    offsets: set[int] = field(default_factory=set)
    error: str = ""
    reason: str = ""


def decode(model: Any, prompt: list[int], case: Case, group: Any = None, right: Sequence[int] = ()) -> Result:
    """Decode a prompt, together with the other ranks, or alone without drafts."""
    stats, layers, step = DraftStats(), make_prompt_cache(model), generate_step
    options = case.options(group.rank() if group else 0, [*prompt, *right])
    if group is None:
        options = {name: options[name] for name in options.keys() & {"sampler"}}
    else:
        step = speculative_generate_step if "draft_strategy" in options else prompt_lookup_generate_step
        options |= {"draft_group": group, "stats": stats}
    mx.random.seed(SEED)
    tokens = list[int]()
    with fed(model) as blocks:
        result = Result([], blocks)
        try:
            for token, *_ in step(mx.array(prompt), model, max_tokens=N, prompt_cache=layers, **options):
                tokens.append(token)
        except (ValueError, RuntimeError) as e:
            result.error = f"{type(e).__name__}: {e}"
    result.rows = [(tokens, "error" if result.error else "length")]
    result.drafted, result.accepted, result.reason = stats.drafted, stats.accepted, str(stats.reason)
    result.offsets = {c.offset for c in layers if hasattr(c, "offset")}
    return result


def decode_rows(model: Any, prompts: list[list[int]], case: Case, group: Any, right: list[list[int]]) -> Result:
    """Decode prompts in a batch, together with the other ranks."""
    from mlx_lm.draft import batch_planner  # Not there before the stage of batches.

    strategies = [Partly([*prompt, *answer], 0.5) for prompt, answer in zip(prompts, right, strict=True)]
    if case.method and group.rank() == 0:
        failing(strategies[0], *case.method)
    planners = [Planner(strategy, 5, DraftStats()) for strategy in strategies]
    able = (lambda *_: False) if group.rank() == case.cannot else batch_planner.can_trim_prompt_cache
    with patch.object(batch_planner, "can_trim_prompt_cache", able):
        generator = BatchGenerator(model, draft_costs=FREE, draft_group=group)
        uids = generator.insert(prompts, [N] * len(prompts), planners=planners)
        rows: dict[int, tuple[list[int], str]] = {uid: ([], "") for uid in uids}
        while responses := generator.next_generated():
            for response in responses:
                rows[response.uid] = [*rows[response.uid][0], response.token], response.finish_reason or ""
    stats = [planner.stats for planner in planners]
    drafted, accepted = sum(s.drafted for s in stats), sum(s.accepted for s in stats)
    return Result([*rows.values()], [], drafted, accepted, reason=str(stats[0].reason))


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


# How a model is split, its name, a case, the prompts of its rows, and what one rank decodes of each.
Asked = tuple[str, str, str, list[list[int]], list[list[int]]]


def decoded(asked: Sequence[Asked]) -> Iterator[Result]:
    """What this rank decodes of each."""
    group = mx.distributed.init(strict=True, backend="ring")
    for how, name, case, prompts, right in asked:
        model = split(how, name, group)
        if case in BATCHES:
            yield decode_rows(model, prompts, CASES[case], group, right)
        else:
            yield decode(model, prompts[0], CASES[case], group, right[0])
    # A rank that ends takes the pass from the other one that runs ahead.
    mx.eval(mx.distributed.all_sum(mx.array(1), group=group))


@pytest.mark.parametrize("run", RUNS)
def test_two_ranks_decode_what_one_decodes(tmp_path: Path, run: str) -> None:
    asked, rights = list[Asked](), list[list[Result]]()
    for how, name, cases in RUNS[run]:
        model, tokenizer = load(str(FIXTURE)) if name == "fixture" else (build(name), None)
        stream = ids(tokenizer, "tool") if tokenizer else PATTERN
        folder = str((as_qwen2(tmp_path) if how == "pipeline" else FIXTURE) if tokenizer else name)
        plain = cache(lambda case, *prompt, model=model: decode(model, list(prompt), CASES[case]))
        for case in cases:
            same = case if case == "sampled" else "auto"
            prompts = ROWS if case in BATCHES else [stream]
            rights.append([plain(same, *prompt) for prompt in prompts])
            asked.append((how, folder, case, prompts, [right.rows[0][0] for right in rights[-1]]))
    for one, right, (first, other) in zip(asked, rights, call(tmp_path, decoded, asked), strict=True):
        check(f"{one[1]}, {one[2]}", CASES[one[2]], right, first, other)


def check(about: str, case: Case, right: list[Result], first: Result, other: Result) -> None:
    """What two ranks decode is what one decodes, in the same blocks."""
    for what in ("blocks", "rows", "drafted", "accepted"):
        if (a := getattr(first, what)) != (b := getattr(other, what)):
            broken(f"{about}: the {what} differ: {a} on rank 0, {b} on rank 1")
    for (tokens, end), one in zip(first.rows, right, strict=True):
        wanted, _ = one.rows[0]
        if tokens != wanted[: len(tokens) if case.error else N] or end != ("error" if case.error else "length"):
            broken(f"{about}: two ranks decode {tokens} and end with {end!r}, one rank {wanted}")
    # A stage of a pipeline may have no cache with an offset.
    offsets = first.offsets | other.offsets
    if len(offsets) > 1 or not (case.error or offsets <= right[0].offsets):
        broken(f"{about}: two ranks leave {offsets} tokens in the cache, one {right[0].offsets}")
    if bool(first.error) != bool(case.error) or case.error not in first.error or bool(other.error) != bool(case.error):
        broken(f"{about}: the ranks say {first.error!r} and {other.error!r} instead of {case.error!r}")
    if case.reason not in first.reason:
        broken(f"{about}: rank 0 says {first.reason!r} of its drafts instead of {case.reason!r}")
    if case.accepts is not None and (bool(first.accepted) != case.accepts or not first.drafted):
        broken(f"{about}: {first.accepted} of {first.drafted} are accepted")
