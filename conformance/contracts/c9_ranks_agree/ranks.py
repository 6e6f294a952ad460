"""What two ranks decode together: cases as data, and what a rank does with one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm import load
from mlx_lm.draft import BlockCosts, DraftStats, NgramModStrategy, NgramModTable, Planner, SuffixStrategy
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import BatchGenerator, generate_step, prompt_lookup_generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import sharded_load

from conformance.drafters import Partly, Scripted
from conformance.oracle.rows import FREE, breaking
from conformance.subjects.architectures import build
from conformance.subjects.families import Counted

N = 24
SEED = 5
VOCAB = 1024
SPLITS = ("tensor", "pipeline")


class Part(Counted):
    """A rank's part of a model, which may be slow."""

    seconds = 0.0

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        time.sleep(self.seconds)
        return super().__call__(inputs, cache)


class Unasked:
    """A strategy for the ranks after the first. It fails if anything calls it."""

    def observe(self, tokens: Sequence[int]) -> None:
        raise AssertionError("asked to observe")

    propose = accept = observe


class NowAndThen(SuffixStrategy):  # type: ignore[misc]
    """Proposes nothing for twelve tokens, then drafts for twelve tokens, on request wrong ones."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.n_seen = wrong, 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.n_seen += len(tokens)
        super().observe(tokens)

    def propose(self, n_max: int) -> Sequence[int]:
        if self.n_seen // 12 % 2 == 0:
            return []
        draft: list[int] = super().propose(n_max)
        return [1] * n_max if self.wrong else draft


class NoToken(SuffixStrategy):  # type: ignore[misc]
    def propose(self, n_max: int) -> Sequence[int]:
        return [-1]


def failing(strategy: Any, method: str, at: int) -> Any:
    """The strategy, of which a method raises at a call."""
    setattr(strategy, method, breaking(getattr(strategy, method), at))
    return strategy


def table(rank: int, text: list[int]) -> NgramModTable:
    """A memory of this text. On other ranks it holds other next tokens."""
    made = NgramModTable(3)
    NgramModStrategy(made, VOCAB).observe(text if rank == 0 else [t for token in text for t in (token, token, rank)])
    return made


@dataclass(frozen=True)
class Case:
    # The arguments of a rank, by its number and the text: the prompt with the answer of plain decoding.
    options: Callable[[int, list[int]], dict[str, Any]] = lambda *_: {}
    # How the model is split. Tensor-parallel ranks wait for each other in every layer: only in a pipeline can one fall
    # behind. What rank 0 looks up alone does not depend on it.
    splits: Sequence[str] = SPLITS
    # Whether drafts are accepted whatever the costs are on this machine, or none is.
    accepts: bool | None = None
    # Without a draft for a while, plain decoding runs ahead.
    ahead: bool = False
    # Whether it does something of its own on a text without copies.
    copies_only: bool = True
    sampled: bool = False
    # What the error of rank 0 says.
    error: str = ""
    # Of a batch: how the strategy of the first row on rank 0 fails, and the rank whose caches cannot drop.
    method: tuple[str, int] | None = None
    cannot: int | None = None


def of_the_first(make: Callable[[list[int]], Any], **more: Any) -> Callable[[int, list[int]], dict[str, Any]]:
    """A strategy of rank 0. Nobody may ask the other ranks."""
    return lambda rank, text: {"draft_strategy": Unasked() if rank else make(text), **more}


def typed(**options: Any) -> Callable[[int, list[int]], dict[str, Any]]:
    return lambda *_: options


PAYING = BlockCosts((1, 2, 16), (1.0, 1.35, 6.0))
UNGATED = {"disable_adaptive_gate": True, "num_draft_tokens": 5}
STREAMS: dict[str, Case] = {
    "plain": Case(copies_only=False),
    "auto": Case(typed(draft_type="auto"), copies_only=False),
    "ngram-simple": Case(typed(draft_type="ngram-simple"), ["tensor"]),
    "ngram-mod": Case(lambda rank, text: {"draft_type": "ngram-mod", "ngram_mod_table": table(rank, text)}, ["tensor"]),
    "ungated": Case(
        lambda rank, text: {"draft_type": "ngram-mod", "ngram_mod_table": table(rank, text), **UNGATED}, accepts=True
    ),
    "costs": Case(
        lambda rank, _: {"draft_type": "auto", "draft_costs": BlockCosts((1, 2, 16), (1, 1.1 + rank, 4 + 9 * rank))},
        accepts=True,
    ),
    "margin": Case(typed(draft_type="auto", draft_margin="auto"), copies_only=False),
    "ties": Case(typed(draft_type="auto", draft_margin=2.0)),
    "slow first": Case(lambda rank, _: {"draft_type": "auto", "seconds": 0.0 if rank else 0.005}, ["pipeline"]),
    "slow last": Case(
        lambda rank, _: {"draft_type": "auto", "draft_costs": PAYING, "seconds": 0.005 if rank else 0.0}, ["pipeline"]
    ),
    "unasked": Case(of_the_first(lambda _: SuffixStrategy()), ["tensor"]),
    "now and then": Case(of_the_first(lambda _: NowAndThen(), draft_costs=PAYING), ahead=True, copies_only=False),
    "wrong": Case(of_the_first(lambda _: NowAndThen(wrong=True), draft_costs=PAYING), ahead=True, copies_only=False),
    "plain, sampled": Case(lambda *_: {"sampler": make_sampler(0.8)}, sampled=True),
    "sampled": Case(lambda *_: {"draft_type": "auto", "sampler": make_sampler(0.8)}, sampled=True),
    "scripted": Case(of_the_first(lambda text: Scripted(text, 64), **UNGATED), accepts=True),
    "scripted ties": Case(of_the_first(lambda text: Scripted(text, 64), draft_margin=0.5, **UNGATED), accepts=True),
}


def fails(method: str, at: int) -> Callable[[int, list[int]], dict[str, Any]]:
    return of_the_first(lambda _: failing(SuffixStrategy(), method, at))


FAILING: dict[str, Case] = {
    "propose fails": Case(fails("propose", 2), error="SuffixStrategy.propose failed: call 2"),
    "observe fails": Case(fails("observe", 0), error="call 0"),
    "accept fails": Case(fails("accept", 0), error="call 0"),
    "no token": Case(of_the_first(lambda _: NoToken()), error="-1"),
    "a memory of its own": Case(
        lambda rank, _: {"draft_type": "ngram-mod", "ngram_mod_table": NgramModTable(3 + rank), "ngram_size": 3},
        error="rank",
    ),
}
# Two rows, of whose drafts the first half is right. What the stage of one rank cannot drop, no stage drafts.
BATCHES: dict[str, Case] = {
    "rows": Case(accepts=True),
    "a row whose observe fails": Case(method=("observe", 1)),
    "a row whose propose fails": Case(method=("propose", 1)),
    "a row whose accept fails": Case(method=("accept", 0)),
    "rank 0 cannot drop": Case(cannot=0, accepts=False),
    "rank 1 cannot drop": Case(cannot=1, accepts=False),
}
CASES = STREAMS | FAILING | BATCHES
# The tokens of a row, and why it ended.
Row = tuple[list[int], str]


@dataclass
class Result:
    """The record of one rank for one decode."""

    rows: list[Row] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    ahead: int = 0
    offsets: set[int] = field(default_factory=set)
    error: str = ""

    @property
    def tokens(self) -> list[int]:
        """Those of the first row."""
        return self.rows[0][0]


def steps(part: Part, prompt: list[int], options: dict[str, Any]) -> Iterator[int]:
    if "draft_group" not in options:
        found = generate_step(mx.array(prompt), part, **options)
    elif "draft_strategy" in options:
        found = speculative_generate_step(mx.array(prompt), part, **options)
    else:
        found = prompt_lookup_generate_step(mx.array(prompt), part, **options)
    return (token for token, *_ in found)


def decode(
    model: Any, prompt: list[int], case: Case = CASES["plain"], group: Any = None, right: Sequence[int] = ()
) -> Result:
    """Decode a prompt, together with the other ranks if there are any."""
    result, stats, layers, part = Result(), DraftStats(), make_prompt_cache(model), Part(model)
    options = case.options(group.rank() if group else 0, [*prompt, *right])
    part.seconds = options.pop("seconds", 0.0)
    if group is not None and options.keys() - {"sampler"}:
        options |= {"draft_group": group, "stats": stats}
    mx.random.seed(SEED)
    verify, tokens = BlockVerifier.verify, list[int]()

    def counted(self: Any, token: Any, draft: Any) -> Any:
        # A token that is fed before it is known.
        result.ahead += isinstance(token, mx.array)
        return verify(self, token, draft)

    with patch.object(BlockVerifier, "verify", counted):
        try:
            tokens.extend(steps(part, prompt, {"max_tokens": N, "prompt_cache": layers, **options}))
        except (ValueError, RuntimeError) as e:
            result.error = f"{type(e).__name__}: {e}"
    result.rows = [(tokens, "error" if result.error else "length")]
    result.blocks, result.drafted, result.accepted = part.blocks, stats.drafted, stats.accepted
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
        rows: dict[int, Row] = {
            uid: ([], "") for uid in generator.insert(prompts, [N] * len(prompts), planners=planners)
        }
        while responses := generator.next_generated():
            for response in responses:
                tokens, _ = rows[response.uid]
                # What a row ends with that failed is no token of its answer.
                new = [] if response.finish_reason == "error" else [response.token]
                rows[response.uid] = [*tokens, *new], response.finish_reason or ""
    stats = [planner.stats for planner in planners]
    return Result(list(rows.values()), [], sum(s.drafted for s in stats), sum(s.accepted for s in stats))


def split(name: str, how: str, group: Any) -> Any:
    """This rank's part of a model: a folder with a slash in its name, or an architecture."""
    if "/" in name and how == "whole":
        return load(name)[0]
    if "/" in name:
        return sharded_load(name, group if how == "pipeline" else None, group if how == "tensor" else None)[0]
    model = build(name)
    if how == "pipeline":
        model.model.pipeline(group)
    return model


# A case, the prompts of its rows, and what one rank decodes of each.
Asked = tuple[str, list[list[int]], list[Result]]


def decoded(how: str, name: str, asked: Sequence[Asked]) -> Iterator[Result]:
    """What this rank decodes of each.

    Args:
        how: The way to split the model: tensor, pipeline, or whole, where every rank has all of it.
    """
    group = mx.distributed.init(strict=True, backend="ring")
    part = Part(split(name, how, group))
    for case, prompts, right in asked:
        answers = [one.tokens for one in right]
        if case in BATCHES:
            yield decode_rows(part.model, prompts, CASES[case], group, answers)
        else:
            yield decode(part, prompts[0], CASES[case], group, answers[0])
    # A rank that ends takes the pass from the other one that runs ahead.
    mx.eval(mx.distributed.all_sum(mx.array(1), group=group))
