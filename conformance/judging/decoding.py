"""C3, C4 and C5: what drafted decoding shares with plain decoding, for each kind of cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.adapters import Adapter
from conformance.judging.cases import Case, NotShown
from conformance.judging.decodes import Decode, N, near, plain, plain_steps, tokens_of
from conformance.judging.models import FAMILIES, Family, gap, model_of
from conformance.judging.states import state_of

EXITS, PARITY, SEEDS, PROCESSORS = "C3 exits", "C4 parity", "C4 seeds", "C5 processors"
# Limits, and how many tokens a consumer takes before it closes the generator.
LIMITS, CLOSES = (1, 4, 5, 6, 7, 11), (1, 2, 3, 4, 6, 9)
SECOND_TURN, SECOND_TOKENS = [7, 9], 3


def parity(adapter: Adapter, family: Family, drafter: str, length: int) -> None:
    decode = Decode(adapter, family, drafter, length)
    got = decode.steps()
    decode.compare(got, plain(family, length))
    decode.check_drafted(got)


def seeds(adapter: Adapter, family: Family, drafter: str, length: int) -> None:
    options = {"sampler": make_sampler(temp=0.8, top_p=0.9)}
    right = plain_steps(family, length, N, **options)[0]
    decode = Decode(adapter, family, drafter, length, **options)
    decode.compare(decode.steps(right=tokens_of(right)), right)


def offsets(caches: list[Any]) -> list[Any]:
    """How many tokens each cache says that it holds."""
    return [offsets(list(c.caches)) if hasattr(c, "caches") else getattr(c, "offset", None) for c in caches]


def exits(adapter: Adapter, family: Family, drafter: str, length: int, n: int, stop: int | None) -> None:
    decode = Decode(adapter, family, drafter, length)
    got = decode.steps(n, stop)
    tokens, held, turn = left_by_plain(family, length, stop or n)
    if tokens_of(got) != tokens:
        raise decode.broken(f"{len(got)} tokens, not those of plain decoding")
    if offsets(decode.caches) != held:
        raise decode.broken(f"the caches say that they hold {offsets(decode.caches)} tokens instead of {held}")
    if (off := gap(second_turn(family, decode.caches), turn)) > 2 * near(family):
        raise decode.broken(f"the log probabilities of the turn that follows are off by {off:.2g}")


@cache
def left_by_plain(family: Family, length: int, n: int) -> tuple[list[int], list[Any], list[mx.array]]:
    """The tokens of plain decoding, what its caches say, and the turn that follows on them."""
    steps, caches = plain_steps(family, length, n)
    return tokens_of(steps), offsets(caches), second_turn(family, caches)


def second_turn(family: Family, caches: list[Any]) -> list[mx.array]:
    options = {**family.options, "prompt_cache": caches, "max_tokens": SECOND_TOKENS}
    return [logprobs for _, logprobs in generate_step(mx.array(SECOND_TURN), model_of(family), **options)]


class Witness:
    """Notes what a processor is shown, and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.seen.append(tokens.tolist())
        return logits


def penalty(tokens: mx.array, logits: mx.array) -> mx.array:
    """Makes what came up lately less likely, by so much that the text is another one."""
    counts = (tokens[-8:][:, None] == mx.arange(logits.shape[-1])).sum(axis=0)
    lowered: mx.array = logits - 6.0 * counts
    return lowered


def processors(adapter: Adapter, family: Family, drafter: str, length: int) -> None:
    """They are shown the prompt and each token before, and what they make of it is what is drawn."""
    witnesses = [Witness(), Witness()]
    right = plain_steps(family, length, N, logits_processors=[witnesses[0], penalty])[0]
    if tokens_of(right) == tokens_of(plain(family, length)):
        raise NotShown("the penalty does not change the text")
    decode = Decode(adapter, family, drafter, length, logits_processors=[witnesses[1], penalty])
    got = decode.steps(right=tokens_of(right))
    # What a draft model guesses may be shown too; what plain decoding shows has to be.
    shown = {tuple(history) for history in witnesses[1].seen}
    for i, history in enumerate(witnesses[0].seen[:N]):
        if tuple(history) not in shown:
            raise decode.broken(f"at token {i}, no processor is shown the {len(history)} tokens before it")
    decode.compare(got, right)


def cases(adapter: Adapter) -> Iterator[Case]:
    for family in FAMILIES:
        for drafter in adapter.drafters:
            yield from _cases(adapter, family, drafter)


def _cases(adapter: Adapter, family: Family, drafter: str) -> Iterator[Case]:
    name, last = f"{family.name}, {drafter} drafts", family.prompts[-1]
    rests = state_of(family)

    def made(contract: str, about: str, check: Callable[..., None], *args: Any) -> Case:
        return Case(contract, about, partial(check, adapter, family, drafter, *args), tuple(rests), args[-1] or args[0])

    for length in family.prompts:
        yield made(PARITY, f"{name}, a prompt of {length}", parity, length)
    rests = [*rests, f"{PARITY}: {name}, a prompt of {last}"]
    yield made(SEEDS, name, seeds, last)
    yield made(PROCESSORS, name, processors, last)
    for n in LIMITS:
        yield made(EXITS, f"{name}, a limit of {n}", exits, last, n, None)
    for n in CLOSES:
        yield made(EXITS, f"{name}, closed after {n}", exits, last, N, n)
