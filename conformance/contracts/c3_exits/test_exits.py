"""However drafted generation ends, the cache holds exactly the yielded tokens.

The first wrong token of a draft moves through all places, so that the stops fall on every place of every draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest
from mlx_lm.draft.verify import BlockVerifier

from conformance.testing.decode.recorder import Step, gap
from conformance.testing.drafts.scripted import Scripted
from conformance.testing.faults.models import nothing_is_rejected, one_accepted_token_goes, one_rejected_token_stays
from conformance.testing.faults.planted import nothing
from conformance.testing.models.architectures import make_cache
from conformance.testing.models.families import (
    FAMILIES,
    GENERATE,
    OPTIONS,
    PROMPT,
    RESTORED,
    VOCAB,
    Counted,
    Exit,
    K,
    Stop,
    allowed,
    at_the_limit,
    by_close,
    by_throw,
    lookup,
    model_of,
    reference,
    scripted,
    seeded,
    shape,
    stepwise,
    stream,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("uncompiled")

# The tokens of four drafts with none, one, two and three right tokens, each with the token that follows.
N = 10
INSIDE_AN_ACCEPTED_DRAFT = {4, 7, 8}
SECOND_TURN = [7, 9]
SECOND_TOKENS = 3


right = partial(stepwise, n=N)


@cache
def second_turn(family: str, n: int) -> list[Step]:
    layers = deepcopy(right(family)[1][n - 1])
    return seeded(model_of(family), SECOND_TURN, SECOND_TOKENS, prompt_cache=layers, **OPTIONS.get(family, {}))


class ExitRun:
    """A drafted run that has not started yet."""

    def __init__(self, family: str) -> None:
        model, options = model_of(family), OPTIONS.get(family, {})
        self.tokens = [token for token, _ in right(family)[0]]
        self.drafter = scripted(PROMPT, right(family)[0])
        self.cache = make_cache(model)
        arguments: dict[str, Any] = {"prompt_cache": self.cache, **options}
        self.steps: Callable[..., Any] = partial(lookup, model, PROMPT, self.drafter, **arguments)
        self.stream: Callable[..., Any] = partial(stream, model=model, prompt=PROMPT, drafter=self.drafter, **arguments)


def in_the_consumer(run: ExitRun, n: int) -> Exit:
    steps: list[Any] = []
    try:
        for step in run.steps(max_tokens=-1):
            steps.append(step)
            if len(steps) == n:
                raise Stop
    except Stop:
        return Exit(steps)
    raise AssertionError("the run was too short")


def last_response(reason: str, responses: Iterator[Any]) -> Exit:
    """Stop at the response with the finish reason, while the generator is open."""
    got = []
    for response in responses:
        got.append(response)
        if response.finish_reason is not None:
            break
    return Exit([(r.token, r.logprobs, r.from_draft) for r in got], responses, got[-1].finish_reason == reason)


def at_the_streams_limit(run: ExitRun, n: int) -> Exit:
    return last_response("length", run.stream(tokenizer(), max_tokens=n))


def at_the_end_token(run: ExitRun, n: int) -> Exit:
    return last_response("stop", run.stream(tokenizer(run.tokens[n - 1]), max_tokens=N + 2))


def by_closing_the_stream(run: ExitRun, n: int) -> Exit:
    responses = run.stream(tokenizer(), max_tokens=-1)
    got = list(islice(responses, n))
    responses.close()
    return Exit([(r.token, r.logprobs, r.from_draft) for r in got], responses)


WAYS: dict[Callable[[ExitRun, int], Exit], list[int]] = {
    at_the_limit: [1, 8],
    by_close: list(range(1, N + 1)),
    by_throw: [4],
    in_the_consumer: [5],
    at_the_streams_limit: [8],
    by_closing_the_stream: [2],
    at_the_end_token: [1, 4, 8],
}


def places(family: str, way: Callable[[ExitRun, int], Exit]) -> list[int]:
    """The places to stop at. An end token stops at its first occurrence."""
    tokens = [token for token, _ in right(family)[0]]
    first = way is not at_the_end_token
    return [n for n in WAYS[way] if first or tokens.index(tokens[n - 1]) == n - 1]


def continued(family: str, layers: list[Any], n: int, drafted: bool) -> list[Any]:
    model, options = model_of(family), OPTIONS.get(family, {})
    if drafted:
        drafter = scripted(SECOND_TURN, second_turn(family, n))
        drafter.turn = 1
        return list(lookup(model, SECOND_TURN, drafter, max_tokens=SECOND_TOKENS, prompt_cache=layers, **options))
    return seeded(model, SECOND_TURN, SECOND_TOKENS, prompt_cache=layers, **options)


def complaints(family: str, way: Callable[[ExitRun, int], Exit], n: int) -> list[str]:
    """Compare a run that ended after n tokens with plain decoding of n tokens."""
    run, (steps, held) = ExitRun(family), right(family)
    exit_ = way(run, n)
    got, wanted = exit_.steps, steps[:n]
    if not exit_.reason or [step[0] for step in got] != [step[0] for step in wanted]:
        return [f"{n}: tokens"]
    same_shape = shape(run.cache) == shape(held[n - 1])
    again, expected = continued(family, run.cache, n, drafted=n % 2 == len(way.__name__) % 2), second_turn(family, n)
    checks = {
        "shapes": {row.shape for _, row, *_ in got} == {(VOCAB,)},
        "log probabilities": gap([s[1] for s in got], [s[1] for s in wanted]) <= allowed(family),
        "what the strategy saw": run.drafter.seen == PROMPT + [token for token, _ in wanted],
        "what the caches hold": same_shape,
        "second turn": [s[0] for s in again] == [s[0] for s in expected],
        "second turn's log probabilities": gap([s[1] for s in again], [s[1] for s in expected]) <= 16 * allowed(family),
    }
    return [f"{n}: {check}" for check, holds in checks.items() if not holds]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_exit(family: str, way: Callable[[ExitRun, int], Exit]) -> None:
    where = places(family, way)
    assert way is not at_the_end_token or INSIDE_AN_ACCEPTED_DRAFT & set(where)
    assert [c for n in where for c in complaints(family, way, n)] == []


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama quantized late"])
def test_the_reference_decoder_does_the_same(family: str) -> None:
    """A decoder without rollback drafts and accepts the same tokens."""
    run = ExitRun(family)
    drafter = Scripted(run.drafter.right, VOCAB)
    steps = [(token, from_draft) for token, _, from_draft in run.steps(max_tokens=N)]
    expected, _ = reference(model_of(family), PROMPT, N, drafter)
    assert steps == expected
    assert run.drafter.depths == drafter.depths


def prompt_only(family: str, decode: Callable[..., Any]) -> tuple[list[Any], list[Any], list[tuple[int, ...]]]:
    """Decode no tokens. Returns the yielded steps, the cache, and the progress reports of the prompt."""
    layers, calls = make_cache(model_of(family)), []
    steps = decode(prompt_cache=layers, prompt_progress_callback=lambda *call: calls.append(call))
    return list(steps), shape(layers), calls


@pytest.mark.parametrize("family", ["llama", "mamba", "deepseek_v41"])
def test_nothing_is_asked_for(family: str) -> None:
    model = model_of(family)
    right = prompt_only(family, partial(seeded, model, PROMPT, 0))
    got = prompt_only(family, partial(lookup, model, PROMPT, Scripted([], VOCAB), max_tokens=0))
    assert got[:2] == right[:2]


def test_a_prompt_is_reported_when_nothing_is_asked_for() -> None:
    model = model_of("llama")
    right = prompt_only("llama", partial(seeded, model, PROMPT, 0))
    got = prompt_only("llama", partial(lookup, model, PROMPT, Scripted([], VOCAB), max_tokens=0))
    assert got[2] == right[2]


def all_right(prompt: list[int], steps: list[Step]) -> Scripted:
    drafter = scripted(prompt, steps)
    drafter.turn = K
    return drafter


@pytest.mark.parametrize("first_turn", [0, 5])
def test_a_prompt_of_one_token_before_quantization(first_turn: int) -> None:
    """A cache entry is quantized after one token when it is due. Rows of a draft must not read the old entry."""
    model, options = model_of("llama"), OPTIONS["llama quantized"]
    layers = make_cache(model)
    if first_turn:
        seeded(model, PROMPT, first_turn, prompt_cache=layers)
    steps = seeded(model, [7], N, prompt_cache=deepcopy(layers), **options)
    got = list(lookup(model, [7], all_right([7], steps), max_tokens=N, prompt_cache=layers, **options))
    assert [step[0] for step in got] == [step[0] for step in steps]
    assert gap([step[1] for step in got], [step[1] for step in steps]) <= allowed("llama quantized")


make_verifier, lookup_loop = BlockVerifier.__init__, GENERATE.speculative_generate_step


def any_length(_: Any) -> float:
    return float("inf")


def on_a_copy_of_the_list(verifier: Any, model: Any, layers: list[Any], *args: Any) -> None:
    make_verifier(verifier, model, list(layers), *args)


class Unclosable:
    """A planted fault: the loop closes only when it is garbage-collected, after the last response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.steps = lookup_loop(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.steps)

    def close(self) -> None:
        pass


@pytest.mark.planted
@pytest.mark.parametrize(
    ("family", "way", "owner", "name", "fault"),
    [
        ("llama", by_close, BlockVerifier, "accept", one_rejected_token_stays),
        ("gemma3_text", by_throw, BlockVerifier, "accept", one_rejected_token_stays),
        ("mamba", in_the_consumer, BlockVerifier, "accept", one_rejected_token_stays),
        ("qwen3_next", at_the_end_token, BlockVerifier, "accept", one_accepted_token_goes),
        ("llama4", by_closing_the_stream, BlockVerifier, "accept", nothing_is_rejected),
        ("deepseek_v41", by_close, BlockVerifier, "close", nothing),
        ("llama quantized late", at_the_limit, BlockVerifier, "_max_block", any_length),
        ("llama quantized", at_the_limit, BlockVerifier, "__init__", on_a_copy_of_the_list),
        ("llama", at_the_end_token, GENERATE, "speculative_generate_step", Unclosable),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, family: str, way: Callable[[ExitRun, int], Exit], owner: Any, name: str, fault: Any
) -> None:
    where = places(family, way)
    monkeypatch.setattr(owner, name, fault)
    if fault is on_a_copy_of_the_list:
        # Only the copy got the quantized entry. The list of the caller still has the old one.
        run = ExitRun(family)
        at_the_limit(run, 3)
        assert shape(run.cache) != shape(right(family)[1][2])
        return
    assert [c for n in where for c in complaints(family, way, n)] != []


@pytest.mark.contract("C2")
def test_every_family_that_is_restored_is_known() -> None:
    """A cache that can drop the end of a block does so. Only the families of RESTORED feed tokens again."""
    for family in FAMILIES:
        model: Counted = model_of(family)
        steps = ExitRun(family).steps(max_tokens=N)
        model.blocks.clear()
        list(steps)
        longest = max(model.blocks[1:])
        assert (longest > 1 + K) == (family in RESTORED), (family, model.blocks)
