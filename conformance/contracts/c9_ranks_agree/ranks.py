"""Decode cases on several ranks, for test_ranks.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.draft import BlockCosts, DraftStats, NgramModStrategy, NgramModTable, SuffixStrategy
from mlx_lm.draft.planner import Planner
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import generate_step, prompt_lookup_generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.utils import sharded_load

from conformance import FIXTURE
from conformance.doors.batch import breaking
from conformance.drafters import Scripted
from conformance.subjects.architectures import build
from conformance.subjects.families import Counted
from conformance.subjects.prompts import ids

N = 24
SEED = 5
VOCAB = 1024
# Gives drafts that are right only for a few tokens.
SHOWN = ("tool", "nothing_to_copy")
# A short prompt for models with random weights.
PATTERN = [7, 3, 9, 4, 7, 3, 9, 4, 7, 3, 9]


@dataclass
class Result:
    """The record of one rank for one decode."""

    case: str
    prompt: str
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    ahead: int = 0
    error: str | None = None


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


def broken(method: str, at: int) -> SuffixStrategy:
    """A strategy that raises at a call of one of its methods."""
    made = SuffixStrategy()
    setattr(made, method, breaking(getattr(made, method), at))
    return made


def table(rank: int, text: list[int]) -> NgramModTable:
    """A memory of this text. On other ranks it holds other next tokens."""
    made = NgramModTable(3)
    NgramModStrategy(made, VOCAB).observe(text if rank == 0 else [t for token in text for t in (token, token, rank)])
    return made


# The arguments of a rank, by its number and the text: the prompt with the answer of plain decoding.
Options = Callable[[int, list[int]], dict[str, Any]]


def of_the_first(make: Callable[[list[int]], Any], **more: Any) -> Options:
    """A strategy of rank 0. Nobody may ask the other ranks."""
    return lambda rank, text: {"draft_strategy": Unasked() if rank else make(text), **more}


PAYING = BlockCosts((1, 2, 16), (1.0, 1.35, 6.0))
UNGATED = {"disable_adaptive_gate": True, "num_draft_tokens": 5}
CASES: dict[str, Options] = {
    "plain": lambda *_: {},
    "auto": lambda *_: {"draft_type": "auto"},
    "ngram-simple": lambda *_: {"draft_type": "ngram-simple"},
    "ngram-mod": lambda rank, text: {"draft_type": "ngram-mod", "ngram_mod_table": table(rank, text)},
    "ungated": lambda rank, text: {"draft_type": "ngram-mod", "ngram_mod_table": table(rank, text), **UNGATED},
    "costs": lambda rank, _: {
        "draft_type": "auto",
        "draft_costs": BlockCosts((1, 2, 16), (1, 1.1 + rank, 4 + 9 * rank)),
    },
    "margin": lambda *_: {"draft_type": "auto", "draft_margin": "auto"},
    "ties": lambda *_: {"draft_type": "auto", "draft_margin": 2.0},
    "slow first": lambda rank, _: {"draft_type": "auto", "seconds": 0.0 if rank else 0.005},
    "slow last": lambda rank, _: {"draft_type": "auto", "draft_costs": PAYING, "seconds": 0.005 if rank else 0.0},
    "unasked": of_the_first(lambda _: SuffixStrategy()),
    "now and then": of_the_first(lambda _: NowAndThen(), draft_costs=PAYING),
    "wrong": of_the_first(lambda _: NowAndThen(wrong=True), draft_costs=PAYING),
    "plain, sampled": lambda *_: {"sampler": make_sampler(0.8)},
    "sampled": lambda *_: {"draft_type": "auto", "sampler": make_sampler(0.8)},
    "scripted": of_the_first(lambda text: Scripted(text, 64), **UNGATED),
    "scripted ties": of_the_first(lambda text: Scripted(text, 64), draft_margin=0.5, **UNGATED),
}
FAILING: dict[str, Options] = {
    "propose fails": of_the_first(lambda _: broken("propose", 2)),
    "observe fails": of_the_first(lambda _: broken("observe", 0)),
    "accept fails": of_the_first(lambda _: broken("accept", 0)),
    "no token": of_the_first(lambda _: NoToken()),
    "a memory of its own": lambda rank, _: {
        "draft_type": "ngram-mod",
        "ngram_mod_table": NgramModTable(3 if rank == 0 else 4),
        "ngram_size": 3,
    },
}


# Without drafts, the other cases do the same as these.
WITHOUT_COPIES = ("plain", "auto", "margin", "now and then", "wrong")


def prompts_of(case: str, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """The prompts of a case."""
    return {name: prompt for name, prompt in prompts.items() if name != SHOWN[1] or case in WITHOUT_COPIES}


def steps(part: Part, prompt: list[int], options: dict[str, Any]) -> Iterator[int]:
    if "draft_group" not in options:
        found = generate_step(mx.array(prompt), part, **options)
    elif "draft_strategy" in options:
        found = speculative_generate_step(mx.array(prompt), part, **options)
    else:
        found = prompt_lookup_generate_step(mx.array(prompt), part, **options)
    return (token for token, *_ in found)


def decode(part: Part, group: Any, case: str, name: str, prompt: list[int], answer: Sequence[int] = ()) -> Result:
    """Decode a prompt with the options of a case, together with the other ranks."""
    result, stats, layers = Result(case, name), DraftStats(), make_prompt_cache(part)
    options = (CASES | FAILING)[case](group.rank(), [*prompt, *answer])
    if "seconds" in options:
        # Forget the learned costs of blocks.
        part = Part(part.model)
        part.seconds = options.pop("seconds")
    part.blocks = []
    if not case.startswith("plain"):
        options |= {"draft_group": group, "stats": stats}
    mx.random.seed(SEED)
    verify = BlockVerifier.verify

    def counted(self: Any, token: Any, draft: Any) -> Any:
        # A token that is fed before it is known.
        result.ahead += isinstance(token, mx.array)
        return verify(self, token, draft)

    BlockVerifier.verify = counted
    try:
        result.tokens.extend(steps(part, prompt, {"max_tokens": N, "prompt_cache": layers, **options}))
    except (ValueError, RuntimeError) as e:
        result.error = f"{type(e).__name__}: {e}"
    finally:
        BlockVerifier.verify = verify
    result.blocks = part.blocks
    result.offsets = sorted({c.offset for c in layers if hasattr(c, "offset")})
    result.drafted, result.accepted = stats.drafted, stats.accepted
    return result


def prompts_for(model: str) -> dict[str, list[int]]:
    """The prompts for the fixture, or a pattern for a model with random weights."""
    if "/" not in model:
        return {"pattern": PATTERN}
    tokenizer = load_tokenizer(FIXTURE)
    return {name: ids(tokenizer, name) for name in SHOWN}


def split(name: str, how: str, group: Any) -> Any:
    """This rank's part of a model."""
    if "/" not in name:
        model = build(name)
        if how == "pipeline":
            model.model.pipeline(group)
        elif how == "tensor":
            model.shard(group)
        return model
    if how == "whole":
        return load(name)[0]
    return sharded_load(name, group if how == "pipeline" else None, group if how == "tensor" else None)[0]


def decoded(how: str, model: str, cases: Sequence[str], decides_alone: bool = False) -> list[Result]:
    """Each case and prompt on this rank.

    Args:
        how: The way to split the model: tensor, pipeline, or whole, where every rank has all of it.
        model: A folder with a slash in its name, or an architecture.
        decides_alone: Plant the fault that each rank decides what it drafts.
    """
    if decides_alone:
        generate: Any = sys.modules["mlx_lm.generate"]
        generate.SharedPlanner = lambda _, make_strategy, *options: Planner(make_strategy(), *options)
    group = mx.distributed.init(strict=True, backend="ring")
    part, prompts = Part(split(model, how, group)), prompts_for(model)
    plain = {name: decode(part, group, "plain", name, prompt) for name, prompt in prompts.items()}
    results = [
        plain[name] if case == "plain" else decode(part, group, case, name, prompt, plain[name].tokens)
        for case in cases
        for name, prompt in prompts_of(case, prompts).items()
    ]
    # A rank that ends takes the pass from the other one that runs ahead.
    mx.eval(mx.distributed.all_sum(mx.array(1), group=group))
    return results
