"""A drafted run by a script or with a draft model, what it is compared with, and the ways to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.generate import generate_step, stream_generate

from conformance.drafters import Scripted
from conformance.oracle.recorder import Step, gap, next_turn
from conformance.oracle.whole import WHOLE
from conformance.subjects.architectures import make_cache
from conformance.subjects.draft_models import drafter_of
from conformance.subjects.families import (
    GENERATE,
    OPTIONS,
    PROMPT,
    K,
    model_of,
    scripted,
    shape,
    tokenizer,
    tolerance,
)

# The tokens of four drafts with none, one, two and three right tokens, each with the token that follows.
N = 10
SECOND_TURN = [7, 9]
SECOND_TOKENS = 6


@cache
def right(family: str) -> tuple[list[Step], list[list[Any]]]:
    """The steps of plain decoding, and a copy of the cache at each step."""
    layers, held = make_cache(model_of(family)), []
    steps = []
    for step in plain(family, layers, PROMPT, N):
        steps.append(step)
        held.append(deepcopy(layers))
    return steps, held


@cache
def second_turn(family: str, n: int) -> list[Step]:
    return list(plain(family, deepcopy(right(family)[1][n - 1]), SECOND_TURN, SECOND_TOKENS))


@cache
def of_the_drafter(family: str, name: str, n: int) -> tuple[list[Any], list[mx.array]]:
    """The cache of the draft model after the prompt and n tokens, fed one by one: its shape, and what follows on it."""
    model, options = drafter_of(name), OPTIONS.get(family, {})
    layers = make_cache(model)
    model(mx.array([PROMPT]), layers)
    for token, _ in right(family)[0][:n]:
        model(mx.array([[token]]), layers)
        if options:
            GENERATE.maybe_quantize_kv_cache(layers, **options)
    return shape(layers), next_turn(model, layers)


def plain(family: str, layers: list[Any], prompt: list[int], n: int) -> Iterator[Step]:
    arguments = {"max_tokens": n, "prompt_cache": layers, **OPTIONS.get(family, {})}
    steps: Iterator[Step] = generate_step(mx.array(prompt), model_of(family), **arguments)
    return steps


@cache
def drafters_noise(name: str) -> float:
    return tolerance(drafter_of(name))


class ExitRun:
    """A drafted run that has not started, by a script or with a draft model, and the list of its caches."""

    def __init__(self, family: str, name: str = "", n_draft: int = K) -> None:
        self.family, self.name = family, name
        self.model, self.stats = model_of(family), DraftStats()
        self.layers = make_cache(self.model)
        self.n_layers = len(self.layers)
        # A stream that is still open.
        self.responses: Any = None
        self.arguments = {"num_draft_tokens": n_draft, "prompt_cache": self.layers, **OPTIONS.get(family, {})}
        if name:
            self.layers += make_cache(drafter_of(name))
            self.arguments["draft_model"] = drafter_of(name)
        else:
            self.follow(scripted(PROMPT, right(family)[0]))

    def follow(self, script: Scripted) -> None:
        self.script = script
        self.arguments |= {"draft_strategy": script, **WHOLE}

    def steps(self, prompt: list[int] = PROMPT, **kwargs: Any) -> Any:
        arguments = {"stats": self.stats, **self.arguments, **kwargs}
        return GENERATE.speculative_generate_step(mx.array(prompt), self.model, **arguments)

    def stream(self, *eos: int, **kwargs: Any) -> Any:
        return stream_generate(self.model, tokenizer(*eos), mx.array(PROMPT), **self.arguments, **kwargs)

    def drafters_complaints(self, n: int) -> Iterator[str]:
        """What differs between the cache of the draft model and one that was fed the prompt and n tokens."""
        layers, model = self.layers[self.n_layers :], drafter_of(self.name)
        wanted, rows = of_the_drafter(self.family, self.name, n)
        # A drafter reads missed tokens in blocks, as a prompt. A block is quantized only after it is read.
        noise = 0.02 if self.family in OPTIONS else max(drafters_noise(self.name), 1e-5)
        if shape(layers) != wanted:
            yield "drafter's lengths"
        elif gap(next_turn(model, deepcopy(layers)), rows) > 16 * noise:
            yield "drafter's rows"

    def second_turn(self, n: int) -> list[Any]:
        """The next turn goes on with the caches after n tokens, and with the same draft model."""
        if not self.name:
            self.follow(scripted(SECOND_TURN, second_turn(self.family, n)))
            self.script.turn = 1
        return list(self.steps(SECOND_TURN, max_tokens=SECOND_TOKENS))


class Stop(Exception):
    pass


# Ways to stop after n tokens.


def at_the_limit(run: ExitRun, n: int) -> list[Any]:
    return list(run.steps(max_tokens=n))


def by_close(run: ExitRun, n: int) -> list[Any]:
    generator = run.steps(max_tokens=-1)
    steps = list(islice(generator, n))
    generator.close()
    return steps


def by_throw(run: ExitRun, n: int) -> list[Any]:
    generator = run.steps(max_tokens=2 * n)
    steps = list(islice(generator, n))
    with pytest.raises(Stop):
        generator.throw(Stop())
    return steps


def in_the_consumer(run: ExitRun, n: int) -> list[Any]:
    steps: list[Any] = []
    try:
        for step in run.steps(max_tokens=-1):
            steps.append(step)
            if len(steps) == n:
                raise Stop
    except Stop:
        return steps
    raise AssertionError("the run was too short")


def last_response(run: ExitRun, reason: str, responses: Iterator[Any]) -> list[Any]:
    """Stop at the response with the finish reason, while the generator is open."""
    got, run.responses = [], responses
    for response in responses:
        got.append(response)
        if response.finish_reason is not None:
            break
    assert got[-1].finish_reason == reason
    return [(r.token, r.logprobs, r.from_draft) for r in got]


def at_the_streams_limit(run: ExitRun, n: int) -> list[Any]:
    return last_response(run, "length", run.stream(max_tokens=n))


def at_the_end_token(run: ExitRun, n: int) -> list[Any]:
    return last_response(run, "stop", run.stream(right(run.family)[0][n - 1][0], max_tokens=-1))


def by_closing_the_stream(run: ExitRun, n: int) -> list[Any]:
    responses = run.stream(max_tokens=-1)
    got = list(islice(responses, n))
    responses.close()
    return [(r.token, r.logprobs, r.from_draft) for r in got]


Way = Callable[[ExitRun, int], list[Any]]
