"""However drafted generation ends, the cache holds exactly the yielded tokens: that of the model, and of a draft model.

The first wrong token of a scripted draft moves through all places, so that the stops fall on every place of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import ModelDraftStrategy
from mlx_lm.draft.loop import Decoder
from mlx_lm.draft.verify import BlockVerifier

from conformance.contracts.c3_exits.exits_run import (
    ExitRun,
    N,
    Way,
    at_the_end_token,
    at_the_limit,
    at_the_streams_limit,
    by_close,
    by_closing_the_stream,
    by_throw,
    in_the_consumer,
    right,
    second_turn,
)
from conformance.drafters import Scripted
from conformance.oracle.recorder import gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import (
    FAMILIES,
    GENERATE,
    OPTIONS,
    PROMPT,
    RESTORED,
    VOCAB,
    K,
    allowed,
    lookup,
    model_of,
    mutant,
    scripted,
    seeded,
    shape,
)
from conformance.testing.decode import draft_model
from conformance.testing.faults.models import nothing_is_rejected, one_accepted_token_goes, one_rejected_token_stays
from conformance.testing.faults.planted import nothing

pytestmark = pytest.mark.usefixtures("uncompiled")

WAS_DRAFTED = [i < depth for depth in range(K + 1) for i in range(depth + 1)]
INSIDE_AN_ACCEPTED_DRAFT = {4, 7, 8}
# (target, draft model). A draft model agrees mostly, or never, or is an unrelated model with other caches.
PAIRS = [
    ("llama", "similar like llama"),
    ("llama", "contrary like llama"),
    ("llama quantized late", "similar like llama"),
    ("gemma3_text", "similar like gemma3_text"),
    ("qwen3_next", "similar like qwen3_next"),
    ("nanbeige", "similar like nanbeige"),
    ("lfm2", "contrary like lfm2"),
    ("mamba", "nanbeige"),
    ("gemma3_text", "qwen3_next"),
    ("qwen3_next", "gemma3_text"),
    ("gemma4_text", "llama"),
    ("deepseek_v41", "mamba"),
    ("llama", "deepseek_v41"),
]
AGREEING = [pair for pair in PAIRS if pair[1] == f"similar like {pair[0]}"]


WAYS: dict[Way, list[int]] = {
    at_the_limit: [1, 8],
    by_close: list(range(1, N + 1)),
    by_throw: [4],
    in_the_consumer: [5],
    at_the_streams_limit: [8],
    by_closing_the_stream: [2],
    at_the_end_token: [1, 4, 8],
}
WITH_A_MODEL: dict[Way, list[int]] = {
    at_the_limit: [1, 3, N],
    by_close: [1, 2, 4, 7],
    by_throw: [6],
    at_the_end_token: [3, 5, 8],
}


def places(family: str, way: Way, name: str = "") -> list[int]:
    """The places to stop at. An end token stops at its first occurrence."""
    tokens = [token for token, _ in right(family)[0]]
    is_any = way is not at_the_end_token
    return [n for n in (WITH_A_MODEL if name else WAYS)[way] if is_any or tokens.index(tokens[n - 1]) == n - 1]


def complaints(family: str, way: Way, n: int, name: str = "", n_draft: int = K) -> Iterator[str]:
    """The differences between a run that ended after n tokens and plain decoding of n tokens."""
    run, wanted = ExitRun(family, name, n_draft), right(family)[0][:n]
    got = way(run, n)
    if [step[0] for step in got] != [step[0] for step in wanted]:
        yield "tokens"
        return
    flags = [from_draft for _, _, from_draft in got]
    checks = {
        "shapes": {row.shape for _, row, _ in got} == {(VOCAB,)},
        "log probabilities": gap([s[1] for s in got], [s[1] for s in wanted]) <= allowed(family),
    }
    if not name:
        checks["what the strategy saw"] = run.script.seen == PROMPT + [token for token, _ in wanted]
        # Before a limit, and before an entry is quantized, drafts are shorter.
        are_whole = way not in (at_the_limit, at_the_streams_limit) and family != "llama quantized late"
        checks["what was drafted"] = not are_whole or flags == WAS_DRAFTED[:n]
    elif run.stats.forwards > 0:
        # A stream has statistics of its own. A restored cache of the target needs one more pass at the end.
        checks["accepted"] = run.stats.accepted == sum(flags)
        checks["forwards"] = 0 <= run.stats.forwards - (n - sum(flags) + 1) <= (family in RESTORED)
    yield from (check for check, holds in checks.items() if not holds)
    wrong = list(run.drafters_complaints(n)) if name else []
    if shape(run.layers[: run.n_layers]) != shape(right(family)[1][n - 1]):
        wrong.append("target's lengths")
    yield from wrong
    if not wrong:
        again, expected = run.second_turn(n), second_turn(family, n)
        if [step[0] for step in again] != [step[0] for step in expected]:
            yield "second turn"
        elif gap([s[1] for s in again], [s[1] for s in expected]) > 16 * allowed(family):
            yield "second turn's log probabilities"


def all_complaints(family: str, way: Way, name: str = "") -> list[str]:
    return [f"{n}: {c}" for n in places(family, way, name) for c in complaints(family, way, n, name)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_exit(family: str, way: Way) -> None:
    assert way is not at_the_end_token or INSIDE_AN_ACCEPTED_DRAFT & set(places(family, way))
    assert all_complaints(family, way) == []


@pytest.mark.parametrize(("family", "name"), PAIRS)
@pytest.mark.parametrize("way", WITH_A_MODEL, ids=lambda way: way.__name__)
def test_exit_with_a_draft_model(family: str, name: str, way: Way) -> None:
    assert places(family, way, name)
    assert all_complaints(family, way, name) == []


@pytest.mark.parametrize(("family", "name"), [PAIRS[0], PAIRS[4], PAIRS[8]])
@pytest.mark.parametrize(("way", "n"), [(at_the_limit, 5), (by_close, 3)])
def test_no_draft_tokens(family: str, name: str, way: Way, n: int) -> None:
    """Nothing is fed to the draft model, and nothing of it is left in the cache for the next turn."""
    run = ExitRun(family, name, 0)
    first = way(run, n)
    assert shape(run.layers) == shape(right(family)[1][n - 1])
    turns = ((first, right(family)[0][:n], 1), (run.second_turn(n), second_turn(family, n), 16))
    for got, wanted, times in turns:
        assert [step[0] for step in got] == [step[0] for step in wanted]
        assert gap([step[1] for step in got], [step[1] for step in wanted]) <= times * allowed(family)


@pytest.mark.contract("C2")
def test_one_draft_token_from_a_cache_that_cannot_trim() -> None:
    """The draft model was not fed such a draft, so it has nothing to restore."""
    assert list(complaints("llama", at_the_limit, 3, "deepseek_v41", n_draft=1)) == []


@pytest.mark.parametrize(("family", "name"), PAIRS[:6])
def test_without_a_prompt_cache(family: str, name: str) -> None:
    run, tokens = ExitRun(family, name), [token for token, _ in right(family)[0]]
    assert [step[0] for step in run.steps(max_tokens=N, prompt_cache=None)] == tokens
    assert run.stats.drafted > 0


@pytest.mark.parametrize(("family", "name"), [pair for pair in PAIRS if " like " in pair[1]])
def test_the_draft_models_are_what_they_are_meant_to_be(family: str, name: str) -> None:
    run = ExitRun(family, name)
    list(run.steps(max_tokens=N))
    assert run.stats.accepted > N / 2 if name.startswith("similar") else run.stats.accepted == 0 < run.stats.drafted


def prompt_only(family: str, decode: Callable[..., Any]) -> tuple[list[Any], list[Any], list[tuple[int, ...]]]:
    """Decode no tokens. Returns the yielded steps, the cache, and the progress reports of the prompt."""
    layers, calls = make_cache(model_of(family)), []
    steps = decode(prompt_cache=layers, prompt_progress_callback=lambda *call: calls.append(call))
    return list(steps), shape(layers), calls


@pytest.mark.parametrize("family", ["llama", "mamba", "deepseek_v41"])
def test_nothing_is_asked_for(family: str) -> None:
    model = model_of(family)
    right = prompt_only(family, partial(seeded, model, PROMPT, 0))
    assert prompt_only(family, partial(lookup, model, PROMPT, Scripted([], VOCAB), max_tokens=0)) == right


@pytest.mark.parametrize("first_turn", [0, 5])
def test_a_prompt_of_one_token_before_quantization(first_turn: int) -> None:
    """A cache entry is quantized after one token when it is due. Rows of a draft must not read the old entry."""
    model, options = model_of("llama"), OPTIONS["llama quantized"]
    layers = make_cache(model)
    if first_turn:
        seeded(model, PROMPT, first_turn, prompt_cache=layers)
    steps = seeded(model, [7], N, prompt_cache=deepcopy(layers), **options)
    drafter = scripted([7], steps)
    drafter.turn = K
    got = list(lookup(model, [7], drafter, max_tokens=N, prompt_cache=layers, **options))
    assert [step[0] for step in got] == [step[0] for step in steps]
    assert gap([step[1] for step in got], [step[1] for step in steps]) <= allowed("llama quantized")


@pytest.mark.contract("C2")
def test_every_family_that_is_restored_is_known() -> None:
    """A cache that can drop the end of a block does so. Only the families of RESTORED feed tokens again."""
    for family in FAMILIES:
        run = ExitRun(family)
        run.model.blocks.clear()
        list(run.steps(max_tokens=N))
        longest = max(run.model.blocks[1:])
        assert (longest > 1 + K) == (family in RESTORED), (family, run.model.blocks)


# Planted faults: a function, or a piece of the source and what takes its place.

make_verifier, lookup_loop = BlockVerifier.__init__, GENERATE.speculative_generate_step
accept, observe = ModelDraftStrategy.accept, ModelDraftStrategy.observe


def any_length(_: Any) -> float:
    return float("inf")


def on_a_copy_of_the_list(verifier: Any, model: Any, layers: list[Any], *args: Any) -> None:
    make_verifier(verifier, model, list(layers), *args)


class Unclosable:
    """The loop closes only when it is garbage-collected, after the last response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.steps = lookup_loop(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.steps)

    def close(self) -> None:
        pass


def keep_the_draft(strategy: Any, n_accepted: int, n_drafted: int) -> None:
    strategy._n_fed = strategy._n_known - 1 + n_accepted
    strategy._n_drafted = 0


def take_accepted_tokens_twice(strategy: Any, n_accepted: int, n_drafted: int) -> None:
    n_fed = strategy._n_fed
    accept(strategy, n_accepted, n_drafted)
    strategy._n_fed = n_fed


def mishear_the_last_token(strategy: Any, tokens: list[int]) -> None:
    observe(strategy, [*tokens[:-1], *((token + 1) % VOCAB for token in tokens[-1:])])


def another_seed(strategy: Any, tokens: list[int]) -> None:
    mx.eval(mx.random.normal())
    observe(strategy, tokens)


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any) -> None:
    monkeypatch.setattr(owner, name, mutant(getattr(owner, name), *fault) if isinstance(fault, tuple) else fault)


# The entries of the draft model never reach the list of the caller.
SPLIT = "prompt_cache += draft_cache", "prompt_cache += make_prompt_cache(draft_model)"
NEVER_DRAFTED = "yield token, logprobs, from_draft", "yield token, logprobs, False"


@pytest.mark.planted
@pytest.mark.parametrize(
    ("family", "name", "way", "owner", "attribute", "fault"),
    [
        ("llama", "", by_close, BlockVerifier, "accept", one_rejected_token_stays),
        ("gemma3_text", "", by_throw, BlockVerifier, "accept", one_rejected_token_stays),
        ("mamba", "", in_the_consumer, BlockVerifier, "accept", one_rejected_token_stays),
        ("qwen3_next", "", at_the_end_token, BlockVerifier, "accept", one_accepted_token_goes),
        ("llama4", "", by_closing_the_stream, BlockVerifier, "accept", nothing_is_rejected),
        ("deepseek_v41", "", by_close, BlockVerifier, "close", nothing),
        ("llama quantized late", "", at_the_limit, BlockVerifier, "_max_block", any_length),
        ("llama quantized", "", at_the_limit, BlockVerifier, "__init__", on_a_copy_of_the_list),
        ("llama", "", at_the_end_token, GENERATE, "speculative_generate_step", Unclosable),
        ("llama", "", by_closing_the_stream, Decoder, "generate", NEVER_DRAFTED),
        ("llama", "contrary like llama", by_close, ModelDraftStrategy, "accept", keep_the_draft),
        ("gemma3_text", "qwen3_next", by_throw, ModelDraftStrategy, "accept", keep_the_draft),
        ("nanbeige", "similar like nanbeige", by_close, ModelDraftStrategy, "accept", take_accepted_tokens_twice),
        ("qwen3_next", "gemma3_text", by_close, ModelDraftStrategy, "observe", mishear_the_last_token),
        ("mamba", "nanbeige", at_the_limit, ModelDraftStrategy, "close", nothing),
        ("llama quantized late", "similar like llama", by_close, GENERATE, "speculative_generate_step", SPLIT),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, family: str, name: str, way: Way, owner: Any, attribute: str, fault: Any
) -> None:
    assert places(family, way, name)
    plant(monkeypatch, owner, attribute, fault)
    assert all_complaints(family, way, name) != []


@pytest.mark.planted
@pytest.mark.parametrize(
    ("check", "owner", "name", "fault"),
    [
        ("C3 exits", BlockVerifier, "accept", nothing),
        ("C4 parity", BlockVerifier, "accept", nothing),
        ("C4 seeds", ModelDraftStrategy, "observe", another_seed),
        ("C5 processors", Decoder, "__init__", ("self.unseen = prompt, ", "self.unseen = prompt[-1:], ")),
        ("C4 no limit", Decoder, "generate", ("else math.inf", "else -5 * max_tokens")),
    ],
)
def test_the_contracts_of_speculation_find_it(
    monkeypatch: pytest.MonkeyPatch, check: str, owner: Any, name: str, fault: Any
) -> None:
    """The checks of test_stock_speculation.py find a fault in the loop."""
    plant(monkeypatch, owner, name, fault)
    assert draft_model.complaints(check, "llama") != []
