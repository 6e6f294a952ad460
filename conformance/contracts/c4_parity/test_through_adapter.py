"""Decoding, plain and drafted, asked through the adapters that fit, as scripts/judge.sh does: C3, C4 and C5."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.adapters import Adapters
from conformance.judging.decodes import Decode, N, near, penalty, plain, plain_steps, tokens_of
from conformance.judging.plugin import note
from conformance.oracle.findings import broken, each, not_shown
from conformance.oracle.recorder import Histories, fed, gap
from conformance.subjects.decoded import Family, model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
# Limits, and how many tokens a consumer takes before it closes the generator.
LIMITS, CLOSES = (1, 5, 6, 11), (1, 2, 4, 9)
SECOND_TURN, SECOND_TOKENS = [7, 9], 3


@pytest.fixture(autouse=True)
def rests_on(request: pytest.FixtureRequest, about: Callable[..., None]) -> None:
    about(request.getfixturevalue("family"))


@pytest.mark.contract("C8")
def test_plain(family: Family, adapter: Adapters, request: pytest.FixtureRequest) -> None:
    """A token takes one forward pass. The steps are noted, for a comparison with another tree bit for bit."""
    mx.reset_peak_memory()
    with fed(model_of(family)) as shapes:
        steps = plain_steps(family, family.prompts[-1], N)[0]
    note(request, "peak", mx.get_peak_memory())
    note(request, "forwards", len(shapes))
    note(request, "steps", " ".join(f"{token}:{digest(logprobs)}" for token, logprobs in steps))
    if sum(shapes) > family.prompts[-1] + N or shapes.count(1) < N - 1:
        broken(f"{N} tokens take passes of {shapes} tokens")


def digest(row: mx.array) -> str:
    return hashlib.sha256(bytes(memoryview(row.astype(mx.float32)))).hexdigest()[:8]


def test_parity(family: Family, drafter: str, adapter: Adapters) -> None:
    """The tokens and log probabilities of plain decoding."""

    def ask(length: int) -> None:
        decode = Decode(adapter, family, drafter, length)
        got = decode.steps()
        decode.compare(got, plain(family, length))
        decode.check_drafted(got)

    each((f"a prompt of {length}", partial(ask, length)) for length in family.prompts)


def test_seeds(family: Family, drafter: str, adapter: Adapters) -> None:
    """A seed gives the tokens that it gives to plain decoding."""
    length, options = family.prompts[-1], {"sampler": make_sampler(temp=0.8, top_p=0.9)}
    right = plain_steps(family, length, N, **options)[0]
    decode = Decode(adapter, family, drafter, length, **options)
    decode.compare(decode.steps(right=tokens_of(right)), right)


def offsets(caches: list[Any]) -> list[Any]:
    """How many tokens each cache says that it holds."""
    return [offsets(list(c.caches)) if hasattr(c, "caches") else getattr(c, "offset", None) for c in caches]


@pytest.mark.contract("C3")
def test_exits(family: Family, drafter: str, adapter: Adapters) -> None:
    """After a limit or an early close the cache holds what was yielded, and the next turn is right."""

    def ask(n: int, stop: int | None) -> None:
        decode = Decode(adapter, family, drafter, family.prompts[-1])
        got = decode.steps(n, stop)
        tokens, held, turn = left_by_plain(family, stop or n)
        if tokens_of(got) != tokens:
            broken(f"{len(got)} tokens, not those of plain decoding")
        if offsets(decode.caches) != held:
            broken(f"the caches say that they hold {offsets(decode.caches)} tokens instead of {held}")
        if (off := gap(second_turn(family, decode.caches), turn)) > 2 * near(family):
            broken(f"the log probabilities of the turn that follows are off by {off:.2g}")

    def cases() -> Iterator[tuple[str, Callable[[], None]]]:
        yield from ((f"a limit of {n}", partial(ask, n, None)) for n in LIMITS)
        yield from ((f"closed after {n}", partial(ask, N, n)) for n in CLOSES)

    each(cases())


@cache
def left_by_plain(family: Family, n: int) -> tuple[list[int], list[Any], list[mx.array]]:
    """The tokens of plain decoding, what its caches say, and the turn that follows on them."""
    steps, caches = plain_steps(family, family.prompts[-1], n)
    return tokens_of(steps), offsets(caches), second_turn(family, caches)


def second_turn(family: Family, caches: list[Any]) -> list[mx.array]:
    options = {**family.options, "prompt_cache": caches, "max_tokens": SECOND_TOKENS}
    return [logprobs for _, logprobs in generate_step(mx.array(SECOND_TURN), model_of(family), **options)]


@pytest.mark.contract("C5")
def test_processors(family: Family, drafter: str, adapter: Adapters) -> None:
    """They are shown the prompt and each token before, and what they make of it is what is drawn."""
    length, witnesses = family.prompts[-1], [Histories(), Histories()]
    right = plain_steps(family, length, N, logits_processors=[witnesses[0], penalty])[0]
    if tokens_of(right) == tokens_of(plain(family, length)):
        not_shown("the penalty does not change the text")
    decode = Decode(adapter, family, drafter, length, logits_processors=[witnesses[1], penalty])
    got = decode.steps(right=tokens_of(right))
    # What a draft model guesses may be shown too; what plain decoding shows has to be.
    shown = {tuple(history) for history in witnesses[1].seen}
    for i, history in enumerate(witnesses[0].seen[:N]):
        if tuple(history) not in shown:
            broken(f"at token {i}, no processor is shown the {len(history)} tokens before it")
    decode.compare(got, right)
