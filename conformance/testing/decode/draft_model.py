"""Decoding with a draft model equals plain decoding. These checks run on any release."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance.oracle.recorder import Histories, gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.draft_models import drafter_of
from conformance.subjects.families import GENERATE, OPTIONS, PROMPT, allowed, model_of, seeded, shape

N, DRAFT = 14, 3
SECOND_TURN = [7, 9]
# A draft model that mostly agrees with the target, and one that never does.
DRAFTERS = ["similar", "contrary"]
# The limit and the tokens that are taken: a stop at each place of a block, and in blocks of one token.
STOPS = {"similar": [(5, None), (6, None), (N, 1), (N, 4), (N, 7)], "contrary": [(5, None), (N, 4)]}


class Refused(Exception):
    """The release says that it cannot decode this model with a draft model."""


@cache
def plain_reference(family: str, n: int) -> tuple[list[Any], list[Any]]:
    """The steps of plain decoding, and its cache. Callers must not change them."""
    layers = make_cache(model_of(family))
    return seeded(model_of(family), PROMPT, n, prompt_cache=layers, **OPTIONS.get(family, {})), layers


class SpeculativeRun:
    """A speculative decode and a plain decode, each with its cache."""

    def __init__(self, family: str, kind: str, n: int = N, stop: int | None = None, **arguments: Any) -> None:
        model, drafter = model_of(family), drafter_of(f"{kind} like {family}")
        options = OPTIONS.get(family, {})
        self.layers = make_cache(model) + make_cache(drafter)
        plain_arguments, own_arguments = (make() for make in 2 * [arguments.pop("make", dict)])
        if plain_arguments:
            self.plain_cache = make_cache(model)
            self.right = seeded(model, PROMPT, stop or n, prompt_cache=self.plain_cache, **options, **plain_arguments)
        else:
            self.right, self.plain_cache = plain_reference(family, stop or n)
        mx.random.seed(7)
        step = GENERATE.speculative_generate_step
        arguments = {"num_draft_tokens": DRAFT, "prompt_cache": self.layers, **options, **own_arguments}
        steps = step(mx.array(PROMPT), model, drafter, max_tokens=n, **arguments)
        try:
            self.got = list(islice(steps, stop))
        except ValueError as error:
            if "trimmable" not in str(error):
                raise
            raise Refused from error
        steps.close()

    def tokens(self) -> tuple[list[int], list[int]]:
        return [int(step[0]) for step in self.got], [step[0] for step in self.right]

    def of_the_target(self) -> list[Any]:
        return self.layers[: len(self.plain_cache)]


def parity(family: str, kind: str) -> list[str]:
    """C4: the tokens and the log probabilities of plain decoding."""
    run = SpeculativeRun(family, kind)
    got, right = run.tokens()
    if got != right:
        return [f"{kind}: tokens"]
    near = gap([step[1] for step in run.got], [step[1] for step in run.right]) <= allowed(family)
    return [] if near else [f"{kind}: log probabilities"]


def seeds(family: str, kind: str) -> list[str]:
    """C4: the tokens of plain decoding with the same seed."""
    got, right = SpeculativeRun(family, kind, make=lambda: {"sampler": make_sampler(temp=0.8, top_p=0.9)}).tokens()
    return [] if got == right else [f"{kind}: tokens"]


def exits(family: str, kind: str) -> list[str]:
    """C3: after n tokens the cache holds the prompt and these tokens, and the next turn is that of plain decoding."""
    found = []
    for n, stop in STOPS[kind]:
        run, model = SpeculativeRun(family, kind, n, stop), model_of(family)
        turns = [
            seeded(model, SECOND_TURN, 3, prompt_cache=deepcopy(layers))
            for layers in (run.of_the_target(), run.plain_cache)
        ]
        same_turn = gap(*([row for _, row in turn] for turn in turns)) <= 16 * allowed(family)
        if shape(run.of_the_target()) != shape(run.plain_cache) or not same_turn:
            found.append(f"{kind}: {'the limit' if stop is None else 'a close'} after {stop or n}")
    return found


def processors(family: str, kind: str) -> list[str]:
    """C5: at each position, processors see the prompt and the tokens before it."""
    witnesses: list[Histories] = []

    def line() -> dict[str, Any]:
        witnesses.append(Histories())
        return {"logits_processors": [witnesses[-1], *make_logits_processors(repetition_penalty=1.4)]}

    run = SpeculativeRun(family, kind, make=line)
    # Processors also see drafted tokens, so each history of the plain run has to be among the seen ones.
    found = [] if all(seen in witnesses[1].seen for seen in witnesses[0].seen) else [f"{kind}: histories"]
    return found if run.tokens()[0] == run.tokens()[1] else [*found, f"{kind}: tokens"]


def without_a_limit(family: str, kind: str) -> list[str]:
    """C4: max_tokens=-1 means no limit, as in generate_step."""
    got, right = SpeculativeRun(family, kind, -1, 9).tokens()
    return [] if got == right else [f"{kind}: tokens"]


CHECKS: dict[str, Callable[[str, str], list[str]]] = {
    "C3 exits": exits,
    "C4 parity": parity,
    "C4 seeds": seeds,
    "C5 processors": processors,
    "C4 no limit": without_a_limit,
}


def complaints(check: str, family: str) -> list[str]:
    return [complaint for kind in DRAFTERS for complaint in CHECKS[check](family, kind)]


@cache
def refused(family: str) -> bool:
    try:
        SpeculativeRun(family, DRAFTERS[0], 1)
    except Refused:
        return True
    except (ValueError, IndexError):
        # Any other failure belongs to test_holds.
        return False
    return False
