"""Samplers and logits processors run once for each token, and see the same as in plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft.loop import Decoder
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import greedy_sampler, make_logits_processors, make_sampler

from conformance.oracle.recorder import Step, gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import (
    OPTIONS,
    PROMPT,
    VOCAB,
    allowed,
    lookup,
    model_of,
    mutant,
    scripted,
    seeded,
    shape,
)

pytestmark = pytest.mark.usefixtures("uncompiled")

N = 12
FAMILIES = ["qwen3_next", "gemma3_text", "llama quantized late"]
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temp": 0.8},
    "top_p": {"temp": 1.0, "top_p": 0.8},
    "min_p": {"temp": 1.0, "min_p": 0.1, "min_tokens_to_keep": 2},
    "top_k": {"temp": 1.0, "top_k": 5},
    "xtc": {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.02},
}


class Shifting:
    """Raises another token at each call. An extra call or a wrong order changes all later tokens."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.calls += 1
        return logits.at[:, 11 * self.calls % VOCAB].add(2.0)


class Remembering:
    """Bans the tokens that followed the last token before. Its state depends on the whole history that it sees."""

    def __init__(self) -> None:
        self.followers: dict[int, set[int]] = {}

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        history = tokens.tolist()
        if len(history) > 1:
            self.followers.setdefault(history[-2], set()).add(history[-1])
        for token in self.followers.get(history[-1], ()):
            logits[:, token] = -mx.inf
        return logits


PROCESSORS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "repetition": lambda: make_logits_processors(repetition_penalty=1.4, repetition_context_size=8),
    "penalties": lambda: make_logits_processors(
        {3: 4.0, 9: -9.0}, 1.2, presence_penalty=0.7, frequency_penalty=0.5, frequency_context_size=30
    ),
    "shifting": lambda: [Shifting()],
    "remembering": lambda: [Remembering(), *make_logits_processors(repetition_penalty=1.1)],
}


class Witness:
    """Records what a processor and a sampler see, and changes nothing."""

    def __init__(self, sampler: Callable[[mx.array], mx.array]) -> None:
        self.sampler = sampler
        self.histories: list[tuple[list[int], Any]] = []
        self.logits: list[mx.array] = []
        self.draws: list[int] = []

    def process(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.histories.append((tokens.tolist(), tokens.dtype))
        self.logits.append(logits + 0)
        return logits

    def sample(self, logprobs: mx.array) -> mx.array:
        token = self.sampler(logprobs)
        self.draws += token.tolist()
        return token


class ProcessorRun:
    """A decode with a witness. It has the yielded steps, and the random state at the end."""

    def __init__(self, sampler: str, processors: str, **more: Any) -> None:
        self.witness = Witness(make_sampler(**SAMPLERS[sampler]))
        # The witness is first and last: it sees the raw logits of a row, then the output of all processors.
        line = [self.witness.process, *PROCESSORS[processors](), self.witness.process]
        self.arguments = {"sampler": self.witness.sample, "logits_processors": line, **more}
        self.steps: list[Any] = []
        self.random: list[Any] = []

    def plain(self, family: str, n: int) -> list[Step]:
        self.steps = seeded(model_of(family), PROMPT, n, **self.arguments, **OPTIONS.get(family, {}))
        self.random = [part.tolist() for part in mx.random.state]
        return self.steps

    def drafted(self, family: str, n: int, right: list[Step], stop: int | None) -> None:
        mx.random.seed(7)
        arguments = self.arguments | OPTIONS.get(family, {})
        steps = lookup(model_of(family), PROMPT, scripted(PROMPT, right), max_tokens=n, **arguments)
        self.steps = list(islice(steps, stop))
        steps.close()
        self.random = [part.tolist() for part in mx.random.state]


def complaints(family: str, sampler: str, processors: str, stop: int | None = None, **more: Any) -> list[str]:
    """The differences between a drafted run and a plain run of as many tokens."""
    right, got = ProcessorRun(sampler, processors, **more), ProcessorRun(sampler, processors, **more)
    right.plain(family, N)
    script = right.steps
    if stop is not None:
        right = ProcessorRun(sampler, processors, **more)
        right.plain(family, stop)
    got.drafted(family, N, script, stop)
    if [step[0] for step in got.steps] != [step[0] for step in right.steps]:
        return ["tokens"]
    a, b, near = got.witness, right.witness, allowed(family)
    checks = {
        "log probabilities": gap([s[1] for s in got.steps], [s[1] for s in right.steps]) <= near,
        "histories": a.histories == b.histories,
        "one call a token": len(b.histories) == len(a.logits) == 2 * (len(right.steps) + 1),
        "logits": len(a.logits) == len(b.logits) and gap(a.logits, b.logits) <= 16 * near,
        "draws": a.draws == b.draws,
        "random state": got.random == right.random,
        "drafts were accepted": stop == 1 or any(from_draft for _, _, from_draft in got.steps),
    }
    return [check for check, holds in checks.items() if not holds]


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_seed_and_history(sampler: str, processors: str) -> None:
    assert complaints("llama", sampler, processors) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("sampler", "processors"), list(zip(SAMPLERS, [*PROCESSORS, "penalties"], strict=True)))
def test_seed_and_history_with_other_caches(family: str, sampler: str, processors: str) -> None:
    assert complaints(family, sampler, processors) == []


@pytest.mark.parametrize("prefill_step_size", [1, 4, len(PROMPT) - 1])
@pytest.mark.parametrize("stop", [1, 4, 8])
def test_chunks_and_early_stops(prefill_step_size: int, stop: int) -> None:
    """Drawing a token that is not used would change the random state for the next response."""
    assert complaints("llama", "temperature", "remembering", stop, prefill_step_size=prefill_step_size) == []


class Failing:
    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, _: mx.array, logits: mx.array) -> mx.array:
        self.left -= 1
        if self.left == 0:
            raise ArithmeticError
        return logits


@pytest.mark.parametrize("family", ["llama", "mamba", "deepseek_v41"])
@pytest.mark.parametrize("call", [1, 2, 5, 7, 8])
def test_a_processor_that_fails(family: str, call: int) -> None:
    """The cache holds the token before the failure, as in plain decoding, and no drafted token after it."""
    model, script = model_of(family), seeded(model_of(family), PROMPT, N)
    caches = [make_cache(model) for _ in range(2)]
    for drafted, layers in enumerate(caches):
        failing: dict[str, Any] = {"logits_processors": [Failing(call)], "prompt_cache": layers}
        drafter = scripted(PROMPT, script)
        decode = partial(lookup, model, PROMPT, drafter) if drafted else partial(generate_step, mx.array(PROMPT), model)
        with pytest.raises(ArithmeticError):
            list(decode(max_tokens=N, **failing))
    assert shape(caches[0]) == shape(caches[1])
    turns = [[row for _, row in seeded(model, [7, 9], 3, prompt_cache=layers)] for layers in caches]
    assert gap(*turns) <= 16 * allowed(family)


def test_a_greedy_draft_without_processors_is_drawn_at_once() -> None:
    """The loop recognizes the sampler that make_sampler returns for temperature 0."""
    assert make_sampler(0.0) is greedy_sampler


EAGER = "if self.sampler is not greedy_sampler or self.processors or len(logits) == 1:"
IS_RIGHT = "from_draft = self.is_drafted(token)"
APPEND = "self.history = mx.concat([self.history, y])"
REST = "mx.array([] if from_draft else self.draft[self.n_accepted :], mx.uint32)"
FAULTS = {
    "a rejected draft in the history": (
        "generate",
        IS_RIGHT,
        f"{IS_RIGHT}; self.history = mx.concat([self.history, {REST}])",
    ),
    "no accepted token in the history": ("generate", APPEND, APPEND + " if not self.draft else self.history"),
    "the last token of the prompt only": ("__init__", "self.unseen = prompt, ", "self.unseen = prompt[-1:], "),
    "one draw more for a rejected draft": (
        "generate",
        IS_RIGHT,
        f"{IS_RIGHT} or (self.draft and self.sampler(logprobs[None]) is None)",
    ),
    "all rows of a block at once": ("draw_rows", EAGER, "if len(logits) == 1:"),
    "every processor twice": ("draw", "in self.processors:", "in 2 * self.processors:"),
}


@pytest.mark.planted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, *edit = FAULTS[fault]
    monkeypatch.setattr(Decoder, name, mutant(getattr(Decoder, name), *edit))
    assert complaints("llama", "temperature", "penalties") != []
