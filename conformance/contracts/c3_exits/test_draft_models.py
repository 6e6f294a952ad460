"""A draft model of any kind drafts for a model of any kind, and both caches are exact at every exit."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats, ModelDraftStrategy
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import stream_generate

from conformance.testing.decode import draft_model as contracts
from conformance.testing.decode.recorder import gap, next_turn
from conformance.testing.faults.planted import nothing, planted
from conformance.testing.models.architectures import make_cache
from conformance.testing.models.draft_models import drafter_of
from conformance.testing.models.families import (
    GENERATE,
    OPTIONS,
    PROMPT,
    VOCAB,
    Exit,
    allowed,
    at_the_limit,
    by_close,
    by_throw,
    model_of,
    mutant,
    seeded,
    shape,
    stepwise,
    tokenizer,
    tolerance,
)

pytestmark = pytest.mark.usefixtures("uncompiled")

N, DRAFT = 12, 4
SECOND_TURN = [7, 9]


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


right = partial(stepwise, n=N)


@cache
def of_the_drafter(family: str, name: str, n: int) -> list[Any]:
    """The cache of the draft model after the prompt and n tokens, fed one by one."""
    model, options = drafter_of(name), OPTIONS.get(family, {})
    layers = make_cache(model)
    model(mx.array([PROMPT]), layers)
    for token, _ in right(family)[0][:n]:
        model(mx.array([[token]]), layers)
        if options:
            GENERATE.maybe_quantize_kv_cache(layers, **options)
    return layers


@cache
def drafters_noise(name: str) -> float:
    return tolerance(drafter_of(name))


Way = Callable[[Any, int], Exit]
WAYS: dict[Way, list[int]] = {
    at_the_limit: [1, 3, N],
    by_close: [1, 2, 4, 7],
    by_throw: [6],
}


class DraftModelRun:
    """A run with a draft model that has not started, and the list that holds both caches."""

    def __init__(self, family: str, name: str, n_draft: int = DRAFT) -> None:
        self.family, self.name, self.n_draft = family, name, n_draft
        self.model, self.drafter = model_of(family), drafter_of(name)
        self.layers = make_cache(self.model) + make_cache(self.drafter)
        self.stats = DraftStats()

    def steps(self, prompt: list[int] = PROMPT, **kwargs: Any) -> Any:
        kwargs = {"prompt_cache": self.layers, "stats": self.stats, **OPTIONS.get(self.family, {}), **kwargs}
        step = GENERATE.speculative_generate_step
        return step(mx.array(prompt), self.model, self.drafter, num_draft_tokens=self.n_draft, **kwargs)

    def halves(self) -> tuple[list[Any], list[Any]]:
        n = len(make_cache(self.model))
        return self.layers[:n], self.layers[n:]


def wrong_caches(run: DraftModelRun, n: int) -> list[str]:
    """The differences between the two caches and caches that were fed one token at a time."""
    wrong = []
    expected = right(run.family)[1][n - 1], of_the_drafter(run.family, run.name, n)
    # A drafter reads missed tokens in blocks, as a prompt. A block is quantized only after it is read.
    near = allowed(run.family), 0.02 if run.family in OPTIONS else drafters_noise(run.name)
    models, names = (run.model, run.drafter), ("target", "drafter")
    for who, model, layers, good, noise in zip(names, models, run.halves(), expected, near, strict=True):
        if shape(layers) != shape(good):
            wrong.append(f"{n}: {who}'s lengths {shape(layers)}")
        elif gap(next_turn(model, deepcopy(layers)), next_turn(model, deepcopy(good))) > 16 * max(noise, 1e-5):
            wrong.append(f"{n}: {who}'s rows")
    return wrong


def complaints(family: str, name: str, way: Way, n: int, n_draft: int = DRAFT) -> list[str]:
    run, steps = DraftModelRun(family, name, n_draft), right(family)[0][:n]
    layers = run.layers
    got = way(run, n).steps
    assert layers is run.layers
    if [step[0] for step in got] != [step[0] for step in steps]:
        return [f"{n}: tokens"]
    accepted = sum(from_draft for _, _, from_draft in got)
    checks = {
        "shapes": {row.shape for _, row, _ in got} == {(VOCAB,)},
        "log probabilities": gap([s[1] for s in got], [s[1] for s in steps]) <= allowed(family),
        "accepted": run.stats.accepted == accepted,
        # A restored cache of the target needs one more pass at the end.
        "forwards": 0 <= run.stats.forwards - (n - accepted + 1) <= (family == "deepseek_v41"),
    }
    return [f"{n}: {check}" for check, holds in checks.items() if not holds] + wrong_caches(run, n)


@pytest.mark.parametrize(("family", "name"), PAIRS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_exit(family: str, name: str, way: Way) -> None:
    assert [c for n in WAYS[way] for c in complaints(family, name, way, n)] == []


@pytest.mark.parametrize(("family", "name"), [PAIRS[0], PAIRS[4], PAIRS[8]])
def test_no_draft_tokens(family: str, name: str) -> None:
    """The draft model drafts nothing, but its cache still holds all tokens at the end."""
    drafter = drafter_of(name)
    drafter.blocks.clear()
    for way, n in ((at_the_limit, 5), (by_close, 3)):
        assert complaints(family, name, way, n, n_draft=0) == []


@pytest.mark.parametrize(("family", "name"), PAIRS[:6])
def test_without_a_prompt_cache(family: str, name: str) -> None:
    run, steps = DraftModelRun(family, name), right(family)[0]
    got = list(run.steps(max_tokens=N, prompt_cache=None))
    assert [step[0] for step in got] == [step[0] for step in steps]
    assert run.stats.drafted > 0


def test_the_draft_models_are_what_they_are_meant_to_be() -> None:
    for family, name in PAIRS:
        run = DraftModelRun(family, name)
        if (family, name) not in AGREEING and not name.startswith("contrary"):
            continue
        list(run.steps(max_tokens=N))
        if (family, name) in AGREEING:
            assert run.stats.accepted > N / 2, (family, name, run.stats)
        if name.startswith("contrary"):
            assert run.stats.accepted == 0 < run.stats.drafted


@pytest.mark.contract("C2")
def test_one_draft_token_from_a_cache_that_cannot_trim() -> None:
    """The draft model was not fed such a draft, so it has nothing to restore."""
    run, steps = DraftModelRun("llama", "deepseek_v41", n_draft=1), right("llama")[0][:3]
    assert [step[0] for step in run.steps(max_tokens=3)] == [token for token, _ in steps]
    assert wrong_caches(run, 3) == []


@pytest.mark.parametrize(("family", "name"), [*AGREEING, PAIRS[7]])
def test_a_second_turn(family: str, name: str) -> None:
    """The next turn goes on with the caches of the first turn and the same draft model, as plain decoding does."""
    for n in (2, 5):
        run = DraftModelRun(family, name)
        by_close(run, n)
        good = deepcopy(right(family)[1][n - 1])
        expected = seeded(run.model, SECOND_TURN, 6, prompt_cache=good)
        got = list(run.steps(SECOND_TURN, max_tokens=6))
        assert [step[0] for step in got] == [step[0] for step in expected]
        assert gap([s[1] for s in got], [s[1] for s in expected]) <= 16 * allowed(family)
        assert shape(run.halves()[0]) == shape(good)


@pytest.mark.parametrize(("family", "name"), [*AGREEING[1:3], PAIRS[9]])
def test_an_end_token(family: str, name: str) -> None:
    """Both caches are exact when the last response arrives, while the generator is open."""
    tokens = [token for token, _ in right(family)[0]]
    for n in (n for n in range(3, N) if tokens.index(tokens[n - 1]) == n - 1):
        run = DraftModelRun(family, name)
        responses = stream_generate(
            run.model,
            tokenizer(tokens[n - 1]),
            PROMPT,
            draft_model=run.drafter,
            num_draft_tokens=DRAFT,
            prompt_cache=run.layers,
            max_tokens=-1,
        )
        last = next(r for r in responses if r.finish_reason is not None)
        assert (last.finish_reason, last.generation_tokens) == ("stop", n)
        assert wrong_caches(run, n) == []


accept, observe = ModelDraftStrategy.accept, ModelDraftStrategy.observe
step_loop = GENERATE.draft_generate_step


def keep_the_draft(strategy: Any, n_accepted: int, n_drafted: int) -> None:
    strategy._n_fed += min(n_accepted, len(strategy._logits) - 1)
    strategy._logits, strategy._snapshot = strategy._logits[-1:], None


def take_accepted_tokens_twice(strategy: Any, n_accepted: int, n_drafted: int) -> None:
    n_fed = strategy._n_fed
    accept(strategy, n_accepted, n_drafted)
    strategy._n_fed = n_fed


def mishear_the_last_token(strategy: Any, tokens: list[int]) -> None:
    observe(strategy, [*tokens[:-1], *((token + 1) % VOCAB for token in tokens[-1:])])


SPLIT = "prompt_cache[:] = model_cache + strategy.cache"


@pytest.mark.planted
@pytest.mark.parametrize(
    ("family", "name", "way", "owner", "method", "fault"),
    [
        ("llama", "contrary like llama", by_close, ModelDraftStrategy, "accept", keep_the_draft),
        ("gemma3_text", "qwen3_next", by_throw, ModelDraftStrategy, "accept", keep_the_draft),
        ("nanbeige", "similar like nanbeige", by_close, ModelDraftStrategy, "accept", take_accepted_tokens_twice),
        ("qwen3_next", "gemma3_text", by_close, ModelDraftStrategy, "observe", mishear_the_last_token),
        ("mamba", "nanbeige", at_the_limit, ModelDraftStrategy, "close", nothing),
        ("llama quantized late", "similar like llama", by_close, GENERATE, "_with_draft_cache", SPLIT),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, family: str, name: str, way: Any, owner: Any, method: str, fault: Any
) -> None:
    if fault is SPLIT:
        # The quantized entries never reach the list of the caller.
        fault = mutant(getattr(owner, method), SPLIT, "pass")
    monkeypatch.setattr(owner, method, fault)
    assert [c for n in WAYS[way] for c in complaints(family, name, way, n)] != []


def another_seed(strategy: Any, tokens: list[int]) -> None:
    mx.eval(mx.random.normal())
    observe(strategy, tokens)


LAST_TOKEN = "history, unseen = prompt, ", "history, unseen = prompt[-1:], "


def the_last_token_of_the_prompt_only(*args: Any, **kwargs: Any) -> Any:
    return mutant(step_loop, *LAST_TOKEN)(*args, **kwargs)


def five_tokens_at_most(*args: Any, max_tokens: int, **kwargs: Any) -> Any:
    return step_loop(*args, max_tokens=5 if max_tokens < 0 else max_tokens, **kwargs)


@pytest.mark.planted
@planted(
    ("C3 exits", BlockVerifier, "accept", nothing),
    ("C4 parity", BlockVerifier, "accept", nothing),
    ("C4 seeds", ModelDraftStrategy, "observe", another_seed),
    ("C5 processors", GENERATE, "draft_generate_step", the_last_token_of_the_prompt_only),
    ("C4 no limit", GENERATE, "draft_generate_step", five_tokens_at_most),
)
def test_the_contracts_of_speculation_find_it(where: str) -> None:
    """The checks of test_stock_speculation.py find a fault in the loop."""
    assert contracts.complaints(where, "llama") != []
